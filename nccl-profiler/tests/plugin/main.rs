//! The plugin's file as NCCL uses it: loaded by its path, called through its tables, in processes of its own. Every test asserts what
//! the agent reads in the ring.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a step that fails is the test's failure"
)]

mod agent;
mod broken;
mod lifecycle;
mod limits;
mod nccl;
mod orders;
mod replay;
mod symbols;
mod versions;

/// In a test's own process nothing; in a rank the scenario.
#[test]
fn rank() {
    let Ok(name) = std::env::var(agent::SCENARIO) else { return };
    let scenarios = [
        broken::SCENARIOS,
        lifecycle::SCENARIOS,
        limits::SCENARIOS,
        orders::SCENARIOS,
        replay::SCENARIOS,
        versions::SCENARIOS,
    ];
    let (_, play) = scenarios.iter().copied().flatten().find(|(one, _)| *one == name).unwrap();
    // Until the agent listens, where there is one.
    let mut answer = [0];
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut answer);
    play();
}
