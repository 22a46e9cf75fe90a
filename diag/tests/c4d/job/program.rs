//! What a rank of the simulated job does in a step, and where.

/// The collective communicators of a rank, in this order.
pub const TP: usize = 0;
pub const DP: usize = 1;
pub const WORLD: usize = 2;

/// The ends of the pipeline's connections of a rank, in this order.
pub const PREV_IN: usize = 0;
pub const PREV_OUT: usize = 1;
pub const NEXT_IN: usize = 2;
pub const NEXT_OUT: usize = 3;

/// One thing that a rank does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    Compute,
    /// All ranks of one of its communicators.
    Collective(usize),
    /// One end of a connection of its pipeline.
    Pair(usize),
}

/// What a rank of a stage does in a step.
pub fn program(stage: usize, stages: usize, tp: usize, dp: usize, batches: usize) -> Vec<Op> {
    let mut ops = Vec::new();
    let tensor = |ops: &mut Vec<Op>| {
        ops.push(Op::Compute);
        if tp > 1 {
            ops.push(Op::Collective(TP));
        }
    };
    for _ in 0..batches {
        if stage > 0 {
            ops.push(Op::Pair(PREV_IN));
        }
        tensor(&mut ops);
        if stage + 1 < stages {
            ops.push(Op::Pair(NEXT_OUT));
        }
    }
    for _ in 0..batches {
        if stage + 1 < stages {
            ops.push(Op::Pair(NEXT_IN));
        }
        tensor(&mut ops);
        if stage > 0 {
            ops.push(Op::Pair(PREV_OUT));
        }
    }
    if dp > 1 {
        ops.push(Op::Collective(DP));
    }
    ops.push(Op::Collective(WORLD));
    ops
}
