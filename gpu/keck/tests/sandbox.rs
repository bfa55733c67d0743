//! Hostile programs in real workers, with no static rule in front of them: each layer of the
//! sandbox alone stops what it is there for, without any layer everything succeeds, and with all
//! of them nothing does.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod common;
mod hostile;

use std::time::Duration;

use hostile::{Prey, TRIES, judge, root, run};
use keck::{Config, Isolation, Judge, ValidateJob};

/// Every set of layers that the table names, on its own.
fn alone(layers: &'static [&'static str]) {
    if !root() {
        println!("only root can leave out layers");
        return;
    }
    let judge = judge(Isolation::Only(layers));
    let named: Vec<&str> = TRIES.iter().map(|t| t.attack).collect();
    let found = run(&judge, &Prey::new(), &named);
    for tried in TRIES {
        let got = &found[tried.attack];
        if tried.stops.contains(&layers) {
            assert_ne!(got, "done", "{} with {layers:?}", tried.attack);
        }
    }
}

#[test]
fn without_layers_every_attack_succeeds() {
    if !root() {
        println!("only root can leave out layers");
        return;
    }
    let judge = judge(Isolation::Only(&[]));
    let named: Vec<&str> = TRIES.iter().map(|t| t.attack).collect();
    let found = run(&judge, &Prey::new(), &named);
    let failed: Vec<&str> = found.iter().filter(|(_, g)| *g == "stopped").map(|f| &**f.0).collect();
    // Root of a container may lack what it takes to raise a limit.
    let weak = !hostile::may_raise_limits() && failed == ["raise_limits"];
    assert!(failed.is_empty() || weak, "{failed:?}");
    let absent = found.values().filter(|got| *got == "absent").count();
    assert!(absent <= 3, "{found:?}");
}

#[test]
fn namespaces_hold_alone() {
    alone(&["mount-ns"]);
    alone(&["pid-ns"]);
    alone(&["pid-ns", "mount-ns"]);
    alone(&["net-ns"]);
    alone(&["ipc-ns"]);
    alone(&["user-ns"]);
}

#[test]
fn lost_privileges_hold_alone() {
    alone(&["own-uid"]);
    alone(&["no-capabilities"]);
}

#[test]
fn limits_hold_alone() {
    alone(&["rlimits"]);
    alone(&["rlimits", "own-uid"]);
}

#[test]
fn landlock_holds_alone() {
    alone(&["landlock"]);
}

#[test]
fn the_system_call_filter_holds_alone() {
    alone(&["seccomp"]);
}

/// Whoever starts the judge: root gets other layers than others do.
#[test]
fn all_layers_together_stop_everything() {
    let named: Vec<&str> =
        ["environment", "inherited"].into_iter().chain(TRIES.iter().map(|t| t.attack)).collect();
    for isolation in [Isolation::Strongest, Isolation::LimitsOnly] {
        let judge = judge(isolation);
        let found = run(&judge, &Prey::new(), &named);
        let got: Vec<_> = found.iter().filter(|(_, got)| *got == "done").map(|f| f.0).collect();
        let known: &[&str] = match isolation {
            // A user of one's own needs a mount namespace, and the number of processes is not
            // limited for root; its own folder has no limit but that of each file.
            Isolation::LimitsOnly => &["become_root", "fill_folder", "sysv_memory", "thread_bomb"],
            _ => &[],
        };
        assert!(got.iter().all(|g| known.contains(&g.as_str())), "{isolation:?}: {found:?}");
    }
}

/// A victim writes into its folder and waits; the attacker looks everywhere for that file.
#[test]
fn workers_do_not_see_each_other() {
    let sets: [(&'static [&'static str], bool); 3] =
        [(&[], true), (&["pid-ns", "mount-ns"], false), (&["landlock"], false)];
    let only = sets.map(|(layers, seen)| (Isolation::Only(layers), seen));
    for (isolation, seen) in only.into_iter().chain([(Isolation::Strongest, false)]) {
        if !root() && isolation != Isolation::Strongest {
            continue;
        }
        let (judge, prey) = (judge(isolation), Prey::new());
        let victim = format!(
            "import time\nwith open('victim', 'w') as file:\n    file.write('{}')\ntime.sleep(4)\n",
            prey.secret()
        );
        let found = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                judge.validate(&ValidateJob { source: victim, seed: 1, trials: 1 }).unwrap()
            });
            std::thread::sleep(Duration::from_millis(1500));
            let found = run(&judge, &prey, &["read_sibling"]);
            assert!(!waits.is_finished(), "the victim had gone");
            found
        });
        assert_eq!(found["read_sibling"] == "done", seen, "{isolation:?}");
    }
}

/// The layer for it is the request to die with the parent; namespaces are not up here.
#[test]
fn a_worker_dies_with_its_parent() {
    if !root() {
        return;
    }
    for (layers, dies) in [(&["parent-death"] as &'static [&'static str], true), (&[], false)] {
        let scratch = tempfile::tempdir().unwrap();
        let isolation = Isolation::Only(layers);
        let config = Config { scratch: scratch.path().into(), isolation, ..Config::default() };
        let judge = Judge::new(config).unwrap();
        let source = "import time\ntime.sleep(15)\n".to_owned();
        std::thread::scope(|scope| {
            scope.spawn(|| judge.validate(&ValidateJob { source, seed: 1, trials: 1 }));
            hostile::until("a worker", || common::processes(scratch.path()).len() == 2);
            let both = common::processes(scratch.path());
            let (parent, worker) = (both[0].min(both[1]), both[0].max(both[1]));
            hostile::kill(parent);
            hostile::until("the parent's end", || !hostile::runs(parent));
            std::thread::sleep(Duration::from_millis(500));
            assert_eq!(hostile::runs(worker), !dies, "{layers:?}");
            hostile::kill(worker);
        });
    }
}

/// A file that belongs to root and makes who runs it root, in the hands of a worker's own user.
#[test]
fn no_program_gives_privileges_back() {
    if !root() {
        return;
    }
    let prey = Prey::new();
    let helper = prey.open_folder().join("helper");
    std::fs::copy("/usr/bin/id", &helper).unwrap();
    hostile::mode(&helper, 0o4755);
    let source = format!(
        "import subprocess\nraise SystemExit(subprocess.run([{:?}, '-u'], capture_output=True, \
         text=True).stdout)\n",
        helper.display().to_string()
    );
    let sets: [(&'static [&'static str], bool); 2] =
        [(&["own-uid"], true), (&["own-uid", "no-new-privs"], false)];
    for (layers, gains) in sets {
        let said = hostile::said(&judge(Isolation::Only(layers)), &source);
        let first = said.lines().next().unwrap();
        assert_eq!(first == "SystemExit: 0", gains, "{layers:?}: {said}");
        assert!(first.starts_with("SystemExit: ") && first.len() > 12, "{said}");
    }
}

/// Limits count by user, and signals reach one's own: a worker of another judge is somebody else.
#[test]
fn workers_of_two_judges_are_two_users() {
    if !root() {
        return;
    }
    let judges = [judge(Isolation::Strongest), judge(Isolation::Strongest)];
    let source = "import os\nraise SystemExit(os.getuid())\n";
    let users = judges.each_ref().map(|judge| hostile::said(judge, source));
    let first = users.each_ref().map(|said| said.lines().next().unwrap());
    assert_ne!(first[0], first[1]);
}

/// The layers can be left out by tests only.
#[test]
fn no_command_leaves_layers_out() {
    let bin = hostile::manifest().join("../../bin");
    for file in hostile::sources(&bin) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("Isolation::"), "{}", file.display());
    }
}
