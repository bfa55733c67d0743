//! A run of hashes with a real log and a real socket, whose engine can be held.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actors::attached::Gate;
use actors::ports::{Drawn, Engine, GenerateJob, TrainJob, Trained, WorldFailed};
use actors::shells::{Limits, Turn, drive, start};
use actors::system::{End, run};
use actors::{Bus, Shells};
use events::config::RunConfig;
use events::event::{Event, Recorded};
use events::ids::{RunId, Seq};
use events::log::{Blobs, Log};
use events::state::RunState;
use kernelzero::attach::residents::Residents;
use kernelzero::attach::socket::Doors;
use kernelzero::audit::{Since, audit_log};
use kernelzero::host::HostConfig;
use kernelzero::plan::fits;
use store::{FileLog, Home, MemoryBlobs, OpenMode};
use tempfile::TempDir;

use crate::cli::{KERNELZERO, root};
use crate::common::{HashEngine, HashEvidence, HashJudge, first};

/// The engine of hashes, with something done before each draw.
struct Held<F>(HashEngine, F);

impl<F: FnMut(&GenerateJob) + Send> Engine for Held<F> {
    fn generate(
        &mut self,
        job: &GenerateJob,
        each: &mut dyn FnMut(Drawn) -> ControlFlow<()>,
    ) -> Result<(), WorldFailed> {
        (self.1)(job);
        self.0.generate(job, each)
    }

    fn train(&mut self, job: &TrainJob) -> Result<Trained, WorldFailed> {
        self.0.train(job)
    }
}

/// A run that this process owns.
pub struct Hall {
    pub folder: TempDir,
    pub home: Home,
    pub run: RunId,
    pub blobs: Arc<MemoryBlobs>,
    pub bus: Arc<Bus>,
    pub gate: Arc<Gate>,
    residents: Option<Residents>,
    doors: Doors,
}

impl Hall {
    pub fn new(config: &RunConfig) -> Self {
        let folder = TempDir::new().unwrap();
        let home = Home::open(folder.path().join("home")).unwrap();
        let blobs = Arc::new(MemoryBlobs::new());
        let first = first(config, &blobs);
        // Branches check their blobs in the home's own store.
        for policy in &first.policies {
            home.blobs().unwrap().put(policy.role.to_string().as_bytes()).unwrap();
        }
        home.blobs().unwrap().put(&blobs.get(first.api_table).unwrap()).unwrap();
        let id = first.run;
        let log = Arc::new(home.create_run(id).unwrap());
        let bus = Arc::new(Bus::open(log, blobs.clone()).unwrap());
        start(&bus, first).unwrap();
        let gate = Gate::new(bus.clone(), |c| fits(c, &HostConfig::default())).unwrap();
        let residents = Residents::start(&gate, &(blobs.clone() as Arc<dyn Blobs>)).unwrap();
        let doors = Doors::open(&home.run_dir(id), id, gate.clone()).unwrap();
        Self { folder, home, run: id, blobs, bus, gate, residents: Some(residents), doors }
    }

    /// Ends the actors of the config, does something, and goes on without them.
    pub fn residents_again(&mut self, act: impl FnOnce(&Arc<Gate>)) {
        if let Some(residents) = self.residents.take() {
            residents.close();
        }
        act(&self.gate);
    }

    fn shells(&self, before: impl FnMut(&GenerateJob) + Send + 'static) -> Shells {
        let engine = HashEngine { blobs: self.blobs.clone(), fails_every: 0, calls: 0 };
        let limits = Limits { samples: 3, judges: 2 };
        Shells::new(Box::new(Held(engine, before)), Arc::new(HashJudge), limits)
    }

    /// Runs to the end on one thread; `before` is called before each draw.
    pub fn drive(&self, before: impl FnMut(&GenerateJob) + Send + 'static) {
        assert_eq!(drive(&mut self.shells(before), &self.bus).unwrap(), Turn::Idle);
    }

    /// Runs to the end with every actor on a thread of its own.
    pub fn run(&self, before: impl FnMut(&GenerateJob) + Send + 'static) -> End {
        run(&self.bus, self.shells(before)).unwrap()
    }

    /// A call of the command line about this home.
    pub fn call(&self, arguments: &[&str]) -> Output {
        crate::cli::kernelzero(self.home.dir(), arguments)
    }

    /// `kernelzero attach` with one of the examples.
    pub fn attach(&self, options: &[&str], script: &str, arguments: &[&str]) -> Child {
        let client = root().join("bin/client");
        Command::new(KERNELZERO)
            .arg("--home")
            .arg(self.home.dir())
            .arg("attach")
            .args(options)
            .arg("--")
            .arg(python())
            .arg(client.join("examples").join(script))
            .args(arguments)
            .env("PYTHONPATH", client)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Ends as a daemon does, checks that everything in the log agrees, and returns its events.
    pub fn close(self) -> (Vec<Recorded>, Arc<MemoryBlobs>, Home, TempDir) {
        if let Some(residents) = self.residents {
            residents.close();
        }
        self.doors.close();
        let log = self.home.open_run(self.run, OpenMode::ReadOnly).unwrap();
        agrees(&log, &self.blobs);
        let events = log.read_after(Seq(0), usize::MAX).unwrap();
        (events, self.blobs, self.home, self.folder)
    }

    /// The same, with the events only.
    pub fn events(self) -> Vec<Recorded> {
        self.close().0
    }

    pub fn run_dir(&self) -> PathBuf {
        self.home.run_dir(self.run)
    }

    /// Something to wait with, also on another thread.
    pub fn eye(&self) -> Eye {
        Eye(self.bus.clone())
    }
}

/// Looks at the state.
#[derive(Clone)]
pub struct Eye(Arc<Bus>);

impl Eye {
    /// Waits until something holds.
    #[track_caller]
    pub fn until(&self, what: &str, holds: impl Fn(&RunState) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.0.ask(&holds).unwrap() {
            assert!(Instant::now() < end, "{what}: never");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until an event is in the log.
    #[track_caller]
    pub fn until_event(&self, what: &str, is: impl Fn(&Recorded) -> bool) {
        self.until_events(what, |recorded| recorded.iter().any(&is));
    }

    /// Waits until something holds of the whole log.
    #[track_caller]
    pub fn until_events(&self, what: &str, holds: impl Fn(&[Recorded]) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !holds(&self.0.log().read_after(Seq(0), usize::MAX).unwrap()) {
            assert!(Instant::now() < end, "{what}: never");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[track_caller]
pub fn agrees(log: &FileLog, blobs: &MemoryBlobs) {
    let report = audit_log(log, &HashEvidence(blobs), Since::Start).unwrap();
    assert_eq!(report.found, 0, "{:#?}", report.findings);
}

pub fn python() -> PathBuf {
    HostConfig::default().python().unwrap()
}

/// Ends with code 0.
#[track_caller]
pub fn well(child: Child) -> Output {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}: {}", output.status, crate::cli::said(&output));
    output
}

/// Whether an event only says who was there and what was asked for or changed.
pub fn is_about_settings(event: &Event) -> bool {
    matches!(
        event,
        Event::RunStarted { .. }
            | Event::RunForked { .. }
            | Event::SettingChanged { .. }
            | Event::SettingPlanned { .. }
            | Event::ActorAttached { .. }
            | Event::ActorDetached { .. }
            | Event::IntentRefused { .. }
            | Event::Noted { .. }
    )
}
