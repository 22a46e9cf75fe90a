//! What a page about a job shows of simulated jobs: who is at fault stands first, everybody is counted, and nothing that a
//! report claims makes it long or unsteady.

use crate::simulated::fault::Fault;
use crate::simulated::machine::Machine;
use crate::simulated::noise::Noise;
use crate::simulated::{Job, Run};
use diag::check::CheckName::{
    self, AllReduce, AllReduce1, AllReduce2, GemmFlops, KernelLaunch, MultiAllReduce2,
};
use diag::page::{MOST_CELLS, MOST_TEXT, Page, PairDrawing, SeriesDrawing, Tone};
use diag::report::{MeasuredOn, Report, RunId};
use jiff::{SignedDuration, Timestamp};

const CHECKS: &[CheckName] = &[GemmFlops, KernelLaunch, AllReduce1, AllReduce2, MultiAllReduce2, AllReduce];

fn job(size: u32) -> Job {
    Job::on(Machine::H200, size, Noise { seed: 3, spread: 0.03, sigma: 0.01, outliers: 0.0 })
}

fn report(job: &Job, checks: &[CheckName]) -> Report {
    let run: Run = job.run(checks);
    let number = RunId {
        job_id: 7,
        cluster: "c".into(),
        check_number: 1,
        engine: job.machine.engine,
        hardware: MeasuredOn::of(&job.suite(checks)),
    };
    let times = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + SignedDuration::from_secs(9));
    Report::new(&number, &job.roster(), &run.verdict, &job.decision(&run), times)
}

fn page(report: &Report) -> Page {
    Page::new(Some(report), &[]).unwrap()
}

#[test]
fn a_slow_gpu_stands_first_with_its_next_step_and_as_a_bar_below_the_limit() {
    let page = page(&report(&job(4).with(Fault::Gpu { node: 2, gpu: 5, left: 0.6 }), CHECKS));
    let [stand] = page.stands.as_slice() else { panic!("{:?}", page.stands) };
    assert_eq!((stand.outcome.as_str(), stand.words.as_str()), ("FAIL", "At fault: GPU n3/gpu5"));
    let [culprit] = page.culprits.as_slice() else { panic!("{:?}", page.culprits) };
    assert_eq!((culprit.kind.as_str(), culprit.name.as_str(), culprit.tone), ("GPU", "n3/gpu5", Tone::Bad));
    assert!(culprit.next[0].contains("a locked clock"), "{culprit:?}");
    let reason = &culprit.reasons[0];
    assert!(reason.check == "gemm_flops" && !reason.words.contains(['[', ']']), "{reason:?}");
    assert!(reason.words.contains("TFLOP/s <") && reason.background.starts_with("limit: "), "{reason:?}");

    let gemm = page.series.iter().find(|one| one.check == "gemm_flops" && one.which.is_empty()).unwrap();
    let SeriesDrawing::Bars { groups } = &gemm.drawing else { panic!("{gemm:?}") };
    let bars: Vec<_> = groups.iter().flat_map(|group| &group.bars).collect();
    assert_eq!((groups.len(), bars.len(), gemm.misses), (4, 32, 1));
    let (limit, median) = (gemm.limit.as_ref().unwrap().0, gemm.median.as_ref().unwrap().0);
    for bar in bars {
        assert_eq!(bar.miss, bar.name == "n3/gpu5", "{bar:?}");
        assert_eq!(bar.share < limit, bar.miss, "{bar:?}");
        assert!(bar.value.ends_with(" TFLOP/s") && bar.share <= 1.0, "{bar:?}");
    }
    assert!(limit < median && median < 1.0);
    // It sat out what came after: three nodes have a number there, and that is said.
    let row = page.table.iter().find(|row| row.check == "all_reduce_1").unwrap();
    assert_eq!(row.stands, ["3 PASS", "1 SKIP"]);
}

#[test]
fn a_node_at_fault_is_a_row_of_the_matrix_and_a_link_a_cell() {
    let job = job(12).with(Fault::Network { node: 8, left: 0.4 }).with(Fault::Link { a: 2, b: 3, left: 0.4 });
    let page = page(&report(&job, &[AllReduce2]));
    let [map] = page.pairs.as_slice() else { panic!("{:?}", page.pairs) };
    assert_eq!((map.check.as_str(), map.which.as_str(), map.unit), ("all_reduce_2", "at 1 GiB", "GB/s"));
    let PairDrawing::Matrix { nodes, cells } = &map.drawing else { panic!("{map:?}") };
    assert_eq!(nodes.len(), 12);
    for cell in cells {
        let at_fault = [cell.row, cell.column].contains(&8) || (cell.row, cell.column) == (2, 3);
        assert_eq!((cell.miss, cell.level > 2), (at_fault, at_fault), "{cell:?}");
        assert!(cell.row < cell.column && cell.column < 12, "{cell:?}");
    }
    assert!(cells.iter().filter(|cell| cell.miss).count() >= 3 && map.worst[0].miss, "{map:?}");
    assert!(
        cells
            .iter()
            .any(|cell| cell.words.starts_with("n3 and n4: ") && cell.words.contains("FAIL of n3-n4"))
    );
}

#[test]
fn of_a_thousand_nodes_the_worst_are_named_and_all_are_counted() {
    let job = job(1024)
        .with(Fault::Gpu { node: 700, gpu: 3, left: 0.5 })
        .with(Fault::Network { node: 333, left: 0.5 });
    let page = page(&report(&job, &[GemmFlops, AllReduce2]));
    let gemm = page.series.iter().find(|one| one.check == "gemm_flops" && one.which.is_empty()).unwrap();
    let SeriesDrawing::Distribution { bins, worst, .. } = &gemm.drawing else { panic!("{gemm:?}") };
    assert_eq!(bins.iter().map(|bin| bin.count).sum::<usize>(), 8192);
    assert_eq!(bins.iter().map(|bin| bin.misses).sum::<usize>(), 1);
    assert!(
        worst[0].name == "n701/gpu3" && worst[0].miss && worst[1..].iter().all(|bar| !bar.miss),
        "{worst:?}"
    );
    let PairDrawing::Nodes { per_cell, cells } = &page.pairs[0].drawing else { panic!() };
    assert_eq!((*per_cell, cells.len()), (1, 1024));
    let marked: Vec<&str> = cells.iter().filter(|cell| cell.miss).map(|cell| cell.name.as_str()).collect();
    assert_eq!(marked, ["n334"]);
    assert!(
        cells.iter().all(|cell| cell.level.is_some() != (cell.name == "n701")),
        "who sat out has no number"
    );
    assert_eq!((page.nodes.shown.len(), page.nodes.more), (64, 960));
    // More nodes than cells share them.
    let mut many = report(&self::job(4), &[AllReduce2]);
    many.nodes.extend((4..5000).map(|node| format!("n{}", node + 1)));
    let PairDrawing::Nodes { per_cell, cells } = &self::page(&many).pairs[0].drawing else { panic!() };
    assert!(*per_cell == 5 && cells.len() <= MOST_CELLS && cells[0].name == "n1 to n5", "{per_cell}");
}

#[test]
fn nothing_that_a_report_claims_makes_a_page_long_or_unsteady() {
    let mut wild = report(&job(4), CHECKS);
    let long = format!("a\u{1b}[2J\u{202e}{}", "x".repeat(100_000));
    for (place, item) in wild.items.iter_mut().enumerate() {
        let number = [f64::MAX, f64::MIN, 0.0, -1.0, f64::MIN_POSITIVE][place % 5];
        item.message.clone_from(&long);
        item.subject.name.clone_from(&long);
        item.check = format!("{long}{place}");
        (item.value, item.limit, item.median) = (Some(number), Some(-number), Some(number));
        item.rates.iter_mut().for_each(|rate| rate.value = number);
        (item.started_at, item.finished_at) = (Some(Timestamp::MAX), Some(Timestamp::MIN));
    }
    wild.nodes = vec![long.clone(); 3];
    (wild.summary, wild.action, wild.cluster) = (long.clone(), long.clone(), long.clone());
    wild.errors = vec![long; 10_000];
    let shown = serde_json::to_string(&page(&wild)).unwrap();
    assert!(shown.len() < 500 * MOST_TEXT, "{} bytes", shown.len());
    assert!(!shown.contains("u001b") && !shown.contains('\u{202e}'));
    // JSON has no word for what is not a number.
    assert!(!shown.contains("\"share\":null"), "{shown}");
}
