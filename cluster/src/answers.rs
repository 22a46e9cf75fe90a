//! All answers of a step as they travel: in the order of nodes, and once where neighbours answered the same, as most do in a
//! round that few take part in. Not what answers mean.

use std::collections::BTreeMap;
use std::io::Write as _;

use diag::facts::NodeId;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::session::Exchanged;

/// Longest cause of a loss that is kept, in bytes: each of many nodes may get a copy of it.
const MAX_CAUSE: usize = 1024;

/// From which node to which, and what each of them answered.
type Run<T> = (NodeId, NodeId, Exchanged<T>);

/// What became of each node in an exchange, in the order of nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Answers<T> {
    runs: Vec<Run<T>>,
}

impl<T> Answers<T> {
    /// Of how many nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.iter().map(|(first, last, _)| (last - first) as usize + 1).sum()
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Of one node; `None`: it had not joined.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<&Exchanged<T>> {
        let at = self.runs.partition_point(|(_, last, _)| *last < node);
        self.runs.get(at).filter(|(first, ..)| *first <= node).map(|(.., answer)| answer)
    }

    /// Each node and what became of it.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Exchanged<T>)> {
        self.runs.iter().flat_map(|(first, last, answer)| (*first..=*last).map(move |node| (node, answer)))
    }

    /// What became of each.
    pub fn values(&self) -> impl Iterator<Item = &Exchanged<T>> {
        self.iter().map(|(_, answer)| answer)
    }

    /// The nodes that are lost, and why.
    pub fn lost(&self) -> impl Iterator<Item = (NodeId, &str)> {
        self.runs.iter().flat_map(|(first, last, answer)| {
            let because =
                if let Exchanged::Lost { because } = answer { Some(because.as_str()) } else { None };
            because.into_iter().flat_map(move |because| (*first..=*last).map(move |node| (node, because)))
        })
    }
}

impl<T: PartialEq> PartialEq<BTreeMap<NodeId, Exchanged<T>>> for Answers<T> {
    fn eq(&self, other: &BTreeMap<NodeId, Exchanged<T>>) -> bool {
        self.iter().eq(other.iter().map(|(node, answer)| (*node, answer)))
    }
}

/// Why a map can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AnswersError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("its nodes are in no order, or there are no such nodes")]
    Order,
}

/// The answers, which come in the order of nodes, as JSON.
pub(crate) fn write<T: Serialize>(
    answers: impl IntoIterator<Item = (NodeId, Exchanged<T>)>,
) -> serde_json::Result<Vec<u8>> {
    let mut runs = Runs { text: vec![b'['], open: None };
    let mut one = Vec::new();
    for (node, answer) in answers {
        one.clear();
        serde_json::to_writer(&mut one, &answer)?;
        runs.add(node, &one);
    }
    runs.close();
    runs.text.push(b']');
    Ok(runs.text)
}

struct Runs {
    text: Vec<u8>,
    open: Option<(NodeId, NodeId, Vec<u8>)>,
}

impl Runs {
    fn add(&mut self, node: NodeId, answer: &[u8]) {
        match &mut self.open {
            Some((_, last, same)) if *last + 1 == node && same == answer => *last = node,
            _ => {
                self.close();
                self.open = Some((node, node, answer.to_vec()));
            }
        }
    }

    fn close(&mut self) {
        let Some((first, last, answer)) = self.open.take() else { return };
        let comma = if self.text.len() > 1 { "," } else { "" };
        // Writing to memory does not fail.
        let _ = write!(self.text, "{comma}[{first},{last},");
        self.text.extend_from_slice(&answer);
        self.text.push(b']');
    }
}

/// What each of `nodes` nodes answered, as far as it was to.
pub(crate) fn read<T: DeserializeOwned>(text: &[u8], nodes: usize) -> Result<Answers<T>, AnswersError> {
    let mut runs: Vec<Run<T>> = serde_json::from_slice(text)?;
    for (.., answer) in &mut runs {
        if let Exchanged::Lost { because } = answer {
            because.truncate(because.floor_char_boundary(MAX_CAUSE));
        }
    }
    let mut next = 0;
    let in_order = runs.iter().all(|(first, last, _)| {
        let fits = next <= *first && first <= last && (*last as usize) < nodes;
        next = last.saturating_add(1);
        fits
    });
    if in_order { Ok(Answers { runs }) } else { Err(AnswersError::Order) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_that_answer_the_same_are_told_at_once() {
        let lost = || Exchanged::Lost { because: "late".into() };
        let answers = [
            (0, Exchanged::Answer(1)),
            (1, Exchanged::Answer(1)),
            (3, Exchanged::Answer(1)),
            (4, lost()),
            (5, lost()),
        ];
        let text = write(answers.clone()).unwrap();
        let expected = r#"[[0,1,{"answer":1}],[3,3,{"answer":1}],[4,5,{"lost":{"because":"late"}}]]"#;
        assert_eq!(String::from_utf8_lossy(&text), expected);
        let answered = read::<u32>(&text, 6).unwrap();
        assert_eq!(answered, BTreeMap::from(answers));
        assert_eq!(
            (answered.len(), answered.get(1), answered.get(2)),
            (5, Some(&Exchanged::Answer(1)), None)
        );
        assert_eq!(answered.lost().collect::<Vec<_>>(), [(4, "late"), (5, "late")]);
        assert!(matches!(read::<u32>(&text, 5), Err(AnswersError::Order)));
    }

    #[test]
    fn runs_that_are_long_overlap_or_go_back_are_refused() {
        let one = r#"{"answer":1}"#;
        for runs in [
            format!("[[0,4294967295,{one}]]"),
            format!("[[1,0,{one}]]"),
            format!("[[0,1,{one}],[1,2,{one}]]"),
            format!("[[2,2,{one}],[0,0,{one}]]"),
        ] {
            assert!(matches!(read::<u32>(runs.as_bytes(), 3), Err(AnswersError::Order)), "{runs}");
        }
    }

    #[test]
    fn a_long_cause_is_cut_before_many_nodes_get_a_copy() {
        let text = write([(0, Exchanged::<u32>::Lost { because: "ä".repeat(MAX_CAUSE) })]).unwrap();
        let answers = read::<u32>(&text, 1).unwrap();
        assert_eq!(answers.lost().map(|(_, because)| because.len()).collect::<Vec<_>>(), [MAX_CAUSE]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(answers in prop::collection::btree_map(0_u32..20, prop::option::of(0_u32..2), 0..20)) {
            let exchanged = |answer: Option<u32>| answer.map_or(Exchanged::Lost { because: "l".into() }, Exchanged::Answer);
            let answers: BTreeMap<_, _> = answers.into_iter().map(|(node, answer)| (node, exchanged(answer))).collect();
            prop_assert_eq!(read::<u32>(&write(answers.clone()).unwrap(), 20).unwrap(), answers);
        }

        #[test]
        fn any_text_is_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read::<u32>(&text, 3);
        }
    }
}
