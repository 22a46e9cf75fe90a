//! Which GPU a name means: the baseline files' names of models and NVML's.

/// Words of a name that tell a slower form of a GPU, or a part of one, from the one that is named without them.
const FORMS: &[&str] = &["PCIE", "NVL", "MIG", "MAX", "VGPU"];

/// The words of a model's name, in capitals and without the maker's.
#[must_use]
pub fn words(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_uppercase).filter(|word| word != "NVIDIA").collect()
}

/// Whether NVML's `name` is a GPU of this `model`: it has all of the model's words, and none that makes it another
/// form. "NVIDIA H100 80GB HBM3" and "NVIDIA A100-SXM4-40GB" are an H100 and an A100; "NVIDIA GH200 480GB" is no
/// H200, and "NVIDIA H100 PCIe" is an "H100 PCIe" only.
#[must_use]
pub fn is(model: &str, name: &str) -> bool {
    let (model, name) = (words(model), words(name));
    let all = model.iter().all(|word| name.contains(word));
    let other_form = name.iter().any(|word| FORMS.contains(&word.as_str()) && !model.contains(word));
    !model.is_empty() && all && !other_form
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_known_by_the_words_of_its_name() {
        for (gpu, name) in [
            ("A100", "NVIDIA A100-SXM4-40GB"),
            ("A100", "A100-SXM4-80GB"),
            ("H100", "NVIDIA H100 80GB HBM3"),
            ("H200", "NVIDIA H200"),
            ("GH200", "NVIDIA GH200 480GB"),
            ("B300", "NVIDIA B300 SXM6 AC"),
            ("H100 PCIe", "NVIDIA H100 PCIe"),
            ("h200 nvl", "NVIDIA H200 NVL"),
        ] {
            assert!(is(gpu, name), "{name} is a {gpu}");
        }
        for (gpu, name) in [
            ("H200", "NVIDIA GH200 480GB"),
            ("B200", "NVIDIA GB200"),
            ("H200", "NVIDIA H200 NVL"),
            ("H100", "NVIDIA H100 PCIe"),
            ("A100", "NVIDIA A100 80GB PCIe"),
            ("H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
            ("H100 PCIe", "NVIDIA H100 80GB HBM3"),
            ("A100", "NVIDIA A10"),
            ("", "NVIDIA H200"),
        ] {
            assert!(!is(gpu, name), "{name} is no {gpu}");
        }
    }
}
