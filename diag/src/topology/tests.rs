//! What both files say, what is a mistake in them, and that no text makes reading run away.

use proptest::prelude::*;

use super::*;

fn names(list: &str) -> Vec<String> {
    expand(list).unwrap()
}

/// Each node with its leaf.
fn told(topology: &Topology, nodes: &str) -> String {
    let (nodes, mut words) = (names(nodes), Vec::new());
    let leaves = topology.of_job(&nodes);
    for (id, name) in (0..).zip(&nodes) {
        words.push(format!("{name}:{}", leaves.get(id).map_or("?", |leaf| leaves.name(leaf))));
    }
    words.join(" ")
}

fn mistakes(of: Result<Topology, Vec<Mistake>>) -> Vec<String> {
    of.unwrap_err().iter().map(ToString::to_string).collect()
}

const TREE: &str = "# the wiring\n\
    SwitchName=s0 Nodes=n[1-2] LinkSpeed=100\n\
    switchname=s1 \\\n  NODES=n[3-4],m07 # more\n\
    SwitchName=top Switches=s[0-1]\n";

#[test]
fn a_tree_in_topology_conf() {
    let topology = parse_conf(TREE).unwrap();
    assert_eq!(told(&topology, "n[1-3],m07,x"), "n1:s0 n2:s0 n3:s1 m07:s1 x:?");
    let leaves = topology.of_job(&names("n4,n1,n3"));
    assert_eq!((leaves.names.join(" "), leaves.of), ("s1 s0".into(), vec![Some(0), Some(1), Some(0)]));
    assert_eq!(topology.of_job(&names("x")), Leaves::default());
    assert_eq!(parse_conf(""), Ok(Topology::default()));
}

#[test]
fn blocks_in_topology_conf() {
    let topology =
        parse_conf("BlockName=b1 Nodes=n[1-18]\nBlockName=b2 Nodes=n[19-36]\nBlockSizes=18,36\n").unwrap();
    let leaves = topology.of_job(&names("n[18-19]"));
    assert_eq!(leaves.called(0), "block b1");
    assert_eq!(leaves.same(0, 1), Some(false));
}

#[test]
fn topology_yaml_as_slurms_manual_has_it() {
    let text = "---\n\
        - topology: blocks\n  cluster_default: true\n  block:\n    block_sizes:\n      - 4\n      - 16\n    blocks:\n      \
        - block: b1\n        nodes: n[1-4]\n      - block: b2\n        nodes: n[5-8]\n\
        - topology: wires   # the default is another\n  cluster_default: false\n  tree:\n    switches:\n    \
        - switch: root\n      children: \"s[1-2]\"\n    - switch: s1\n      nodes: n[1-2]\n    - switch: s2\n      \
        nodes: n3,n4\n\
        - topology: none\n  flat: true\n- topology: newer\n  ring:\n    rings:\n      - ring: r1\n        nodes: n[1-8]\n";
    let topology = parse_yaml(text).unwrap();
    assert_eq!(told(&topology, "n[1-4]"), "n1:s1 n2:s1 n3:s2 n4:s2", "how they are wired");
    assert_eq!(told(&topology, "n[4-5]"), "n4:b1 n5:b2", "which knows more of them");
    let sizes = text.replace("block_sizes:\n      - 4\n      - 16", "block_sizes: [4, 16]");
    assert_eq!(parse_yaml(&sizes), Ok(topology));
    assert_eq!(
        parse_yaml("---\n- topology: t\n  tree:\n    switches: []\n").unwrap().of_job(&names("n1")),
        Leaves::default()
    );
    assert_eq!(parse_yaml("# nothing\n"), Ok(Topology::default()));
}

#[test]
fn every_mistake_of_topology_conf_is_told_with_its_line() {
    let text = "SwitchName=a Nodes=n[1-\nSwitchName=b\nSwitchName=c Nodes=n1 Switches=a\nNodes=n2\nSwitchName=a Nodes=n3\n\
        SwitchName=d Nodes=n3\nSwitchName=e Switches=zz\nSwitchName=f Nodes=n9 Colour=red\nSwitchName = g Nodes=n8\n\
        BlockName=h Switches=a\n";
    let told = mistakes(parse_conf(text));
    for (line, words) in [
        (1, "a: a bracket"),
        (2, "b has neither nodes nor switches"),
        (3, "c has nodes and switches"),
        (4, "neither SwitchName nor BlockName"),
        (5, "a stands in line 1 too"),
        (6, "node n3 is below a and d"),
        (7, "there is no switch zz"),
        (8, "unknown key \"Colour\""),
        (9, "without spaces around the ="),
        (10, "a block has nodes"),
    ] {
        let found = told.iter().any(|one| one.starts_with(&format!("line {line}: ")) && one.contains(words));
        assert!(found, "line {line}: {words}: {told:#?}");
    }
}

#[test]
fn every_mistake_of_topology_yaml_is_told_with_its_line() {
    let text = "- topology: t\n  tree:\n    switches:\n      - switch: a\n        nodes: n[1-\n      - nodes: n2\n      - switch: b\n\
        - tree:\n    switches:\n      - switch: c\n        nodes: &x n1\n- topology: u\n  block: 3\n\
        - topology: v\n\tblock:\n- topology: w\n  tree:\n    switches: {}\n  block:\n    blocks: []\n";
    let told = mistakes(parse_yaml(text));
    for (line, words) in [
        (4, "a: a bracket"),
        (6, "begins with `switch: NAME`"),
        (7, "b has neither"),
        (8, "begins with `topology: NAME`"),
        (11, "this form of YAML"),
        (13, "a list `blocks:`"),
        (15, "a tab"),
        (18, "this form of YAML"),
        (18, "not both"),
    ] {
        let found = told.iter().any(|one| one.starts_with(&format!("line {line}: ")) && one.contains(words));
        assert!(found, "line {line}: {words}: {told:#?}");
    }
    assert!(mistakes(parse_yaml("topology: t\n"))[0].contains("a list of topologies"));
    assert!(mistakes(parse_yaml("- topology: t\n x: y\n"))[0].contains("indented"));
}

#[test]
fn huge_texts_end_within_their_bounds() {
    let bomb = "SwitchName=s Nodes=n[1-65536]\n".repeat(1000);
    assert!(mistakes(parse_conf(&bomb)).len() <= MOST_MISTAKES);
    let lines: String = (0..70_000).map(|n| format!("SwitchName=s{n} Nodes=n{n}\n")).collect();
    assert!(mistakes(parse_conf(&lines))[0].contains("no cluster has as many"));
    let fits: String = (0..65_536).map(|n| format!("SwitchName=s{n} Nodes=n{n}\n")).collect();
    assert!(parse_conf(&fits).is_ok());
    let deep: String = (0..10_000).map(|depth| format!("{}a:\n", " ".repeat(depth % 700))).collect();
    assert!(parse_yaml(&deep).is_err());
    assert!(parse_yaml(&"- ".repeat(100_000)).is_err());
    assert!(parse_yaml(&format!("- topology: {}\n", "[".repeat(100_000))).is_err());
    let long = "x".repeat(MAX_BYTES + 1);
    assert!(
        mistakes(parse_conf(&long))[0].contains("at most")
            && mistakes(parse_yaml(&long))[0].contains("at most")
    );
}

#[test]
fn what_is_told_of_a_file_cannot_forge_a_line() {
    let told = mistakes(parse_conf("SwitchName=a\u{1b}[2J Nodes=n[\u{7} x\n"));
    assert!(told.iter().all(|one| !one.contains(char::is_control) && one.len() < 1000), "{told:?}");
}

/// Pieces of both files, so that what is made of them goes deep before it is wrong.
fn piece() -> impl Strategy<Value = String> {
    let known = [
        "SwitchName=",
        "Nodes=",
        "Switches=",
        "s1",
        "n[1-9]",
        " ",
        "\n",
        "\\\n",
        "#",
        "- ",
        "topology: ",
        "tree:\n",
        "block:\n",
        "switches:\n",
        "blocks:\n",
        "switch: ",
        "nodes: ",
        "children: ",
        "  ",
        "      ",
        "[",
        "]",
        "\"",
        "\t",
        ":",
        "=",
        "---\n",
        "\u{e9}",
        "&",
        "{",
    ];
    prop_oneof![
        9 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => "[ -~]{0,6}"
    ]
}

proptest! {
    #[test]
    fn any_text_is_leaves_or_mistakes(pieces in proptest::collection::vec(piece(), 0..60), any in "(?s).{0,80}") {
        for text in [pieces.concat(), any] {
            for told in [parse_conf(&text), parse_yaml(&text)] {
                match told {
                    Ok(topology) => {
                        let leaves = topology.of_job(&["n1".to_owned(), "s1".to_owned()]);
                        prop_assert!(leaves.of.iter().flatten().all(|leaf| (*leaf as usize) < leaves.names.len()));
                    }
                    Err(mistakes) => prop_assert!(!mistakes.is_empty() && mistakes.len() <= MOST_MISTAKES),
                }
            }
        }
    }

    #[test]
    fn both_files_say_the_same_of_the_same_leaves(sizes in proptest::collection::vec(1_usize..40, 1..20)) {
        let (mut conf, mut yaml) = (String::new(), "- topology: t\n  tree:\n    switches:\n".to_owned());
        let (mut first, mut wanted) = (0, Vec::new());
        for (leaf, size) in sizes.iter().enumerate() {
            let last = first + size - 1;
            conf.push_str(&format!("SwitchName=s{leaf} Nodes=n[{first}-{last}]\n"));
            yaml.push_str(&format!("      - switch: s{leaf}\n        nodes: n[{first}-{last}]\n"));
            wanted.extend((first..=last).map(|_| Some(LeafId::try_from(leaf).unwrap())));
            first += size;
        }
        let nodes: Vec<String> = (0..first).map(|node| format!("n{node}")).collect();
        prop_assert_eq!(parse_conf(&conf).unwrap().of_job(&nodes).of, wanted.clone());
        prop_assert_eq!(parse_yaml(&yaml).unwrap().of_job(&nodes).of, wanted);
    }
}
