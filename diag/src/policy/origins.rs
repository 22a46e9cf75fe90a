//! Where in a policy's file each value stands.

use std::collections::BTreeMap;

use crate::fields::Value;
use crate::policy::tree::read_toml;
use crate::request::mistake::Mistakes;

/// The line of each value by its keys, joined by dots; of a list as a whole. Nothing of a text that is not TOML.
#[must_use]
pub fn lines(toml_text: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    if let Some(top) = read_toml(toml_text, &mut Mistakes::default()) {
        collect(&top, "", &mut found);
    }
    found
}

/// The parser bounds how deep tables nest, and with that this recursion.
fn collect(value: &Value, path: &str, found: &mut BTreeMap<String, usize>) {
    let Value::Table(entries) = value else { return };
    for entry in entries {
        let path = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
        if matches!(entry.value, Value::Table(_)) {
            collect(&entry.value, &path, found);
        } else if let Some(line) = entry.line {
            found.entry(path).or_insert(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_its_line() {
        let text = "engine = 'host'\n\n[time]\njoin_s = 8\n[network.addresses]\n'n.1' = '10.0.0.1'\n\
                    [runtime]\nxid = [\n  { xid = [13], class = 'gpu' },\n]\n[nccl]\nenv.NCCL_DEBUG = 'INFO'\n";
        let found = lines(text);
        let wanted = [
            ("engine", 1),
            ("network.addresses.n.1", 6),
            ("nccl.env.NCCL_DEBUG", 12),
            ("runtime.xid", 8),
            ("time.join_s", 4),
        ];
        let wanted: BTreeMap<String, usize> =
            wanted.iter().map(|(path, line)| ((*path).into(), *line)).collect();
        assert_eq!(found, wanted);
        assert!(lines("no = = toml").is_empty());
    }
}
