//! What a judge costs, and what is left when it or its warm process dies.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{case, measure, misbehaving, processes};
use events::outcome::{Backend, Execution};
use keck::{Build, Config, Judge, MeasureJob, ValidateJob};

fn validate(judge: &Judge, source: &str) {
    judge.validate(&ValidateJob { source: source.to_owned(), seed: 7, trials: 3 }).unwrap();
}

#[test]
fn several_threads_share_a_judge() {
    let judge = common::judge(2);
    let module = case("reference", "leaky_scale");
    let kernel = case("kernels", "honest_leaky");
    let start = Instant::now();
    std::thread::scope(|scope| {
        let jobs: Vec<_> =
            (0..4).map(|_| scope.spawn(|| measure(&judge, &module, &kernel))).collect();
        for job in jobs {
            let found = job.join().unwrap();
            assert!(matches!(found.execution, Execution::Ran { launches: 1, .. }));
        }
    });
    println!("4 measurements in {} ms", start.elapsed().as_millis());
}

#[test]
fn costs() {
    let judge = common::judge(1);
    let (module, kernel) = (case("reference", "leaky_scale"), case("kernels", "honest_leaky"));
    validate(&judge, &module);
    let times = |what: &str, run: &dyn Fn()| {
        let mut ms: Vec<u128> = (0..7)
            .map(|_| {
                let start = Instant::now();
                run();
                start.elapsed().as_millis()
            })
            .collect();
        ms.sort_unstable();
        println!("{what}: {ms:?} ms");
    };
    times("validate", &|| validate(&judge, &module));
    times("measure, reference cached", &|| drop(measure(&judge, &module, &kernel)));
}

#[test]
fn a_dead_warm_process_is_no_verdict() {
    let scratch = tempfile::tempdir().unwrap();
    let judge = Judge::new(Config { scratch: scratch.path().into(), ..Config::default() }).unwrap();
    let module = case("reference", "leaky_scale");
    let before = processes(scratch.path());
    let result = std::thread::scope(|scope| {
        let judge = &judge;
        let job = MeasureJob {
            module_source: module.clone(),
            kernel_source: case("kernels", "broken_loops"),
            backend: Backend::Triton,
            build: Build::Ready,
            seed: 7,
            trials: 1,
            timing: false,
        };
        let running = scope.spawn(move || judge.measure(&job));
        std::thread::sleep(Duration::from_secs(3));
        for pid in before {
            // SAFETY: a signal to processes that this test started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        running.join().unwrap()
    });
    assert!(matches!(result, Err(keck::Error::WorkerDied(_))), "{result:?}");
    let honest = measure(&judge, &module, &case("kernels", "honest_leaky"));
    assert!(matches!(honest.execution, Execution::Ran { .. }), "{:?}", honest.execution);
}

/// Kills the judge's process hard and looks for what is left. The child is this test binary.
#[test]
fn a_worker_that_the_machine_ends_is_judged_again() {
    let scratch = tempfile::tempdir().unwrap();
    let judge = Judge::new(Config { scratch: scratch.path().into(), ..Config::default() }).unwrap();
    let (module, kernel) = (case("reference", "leaky_scale"), case("kernels", "honest_leaky"));
    measure(&judge, &module, &kernel);
    let before = processes(scratch.path());
    let slow = misbehaving("import time\ntime.sleep(5)");
    let found = std::thread::scope(|scope| {
        let running = scope.spawn(|| measure(&judge, &module, &slow));
        let started = Instant::now();
        let worker = loop {
            let now = processes(scratch.path());
            if let Some(pid) = now.into_iter().find(|pid| !before.contains(pid)) {
                break pid;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "no worker came");
            std::thread::sleep(Duration::from_millis(5));
        };
        // By now it is ready and sleeps.
        std::thread::sleep(Duration::from_millis(2500));
        // SAFETY: a signal to a process that this test started.
        unsafe { libc::kill(worker, libc::SIGKILL) };
        running.join().unwrap()
    });
    assert!(matches!(found.execution, Execution::Ran { launches: 1, .. }), "{:?}", found.execution);
}

#[test]
fn nothing_outlives_a_killed_judge() {
    const MARK: &str = "KECK_TEST_CHILD";
    if let Some(scratch) = std::env::var_os(MARK) {
        let judge = Judge::new(Config { scratch: scratch.into(), ..Config::default() }).unwrap();
        println!("ready");
        let endless = case("kernels", "broken_loops");
        measure(&judge, &case("reference", "leaky_scale"), &endless);
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["nothing_outlives_a_killed_judge", "--exact", "--nocapture"])
        .env(MARK, scratch.path())
        .spawn()
        .unwrap();
    let running = || processes(scratch.path()).len();
    let until = |wanted: &dyn Fn(usize) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(90);
        while !wanted(running()) {
            assert!(Instant::now() < deadline, "{} processes", running());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    // The outer process, the warm one and the worker all carry the scratch folder's name.
    until(&|count| count >= 3);
    child.kill().unwrap();
    child.wait().unwrap();
    until(&|count| count == 0);
    let sweeper = Judge::new(Config { scratch: scratch.path().into(), ..Config::default() });
    let left = std::fs::read_dir(scratch.path()).unwrap().count();
    drop(sweeper);
    assert_eq!(left, 1, "the dead judge's folder was not swept");
}
