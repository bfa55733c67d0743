//! The service over a judge that fails as it is told: what is no verdict never becomes one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actors::ports::MeasureJob;
use events::config::Rules;
use events::event::{Draft, Event, JobSpec, Recorded};
use events::ids::{Digest, JobId, Seq};
use events::log::{Blobs, Log, LogError};
use events::outcome::Backend;
use kernelzero::judge::world_failed;
use kernelzero::service::jobs::{Service, Submission};
use kernelzero::service::refused::Refused;
use kernelzero::service::work::{ATTEMPTS, Answers, work};
use serde_json::{Value, json};
use store::{MemoryBlobs, MemoryLog};

/// Answers by the candidate's words, and counts.
#[derive(Default)]
struct Told {
    asked: Mutex<Vec<String>>,
}

impl Answers for Told {
    fn answer(&self, job: &MeasureJob, _: Rules, _: Option<Backend>) -> Value {
        let mut asked = self.asked.lock().unwrap();
        asked.push(job.kernel_source.clone());
        let before = asked.iter().filter(|source| **source == job.kernel_source).count();
        drop(asked);
        match job.kernel_source.as_str() {
            "panics" => panic!("as told"),
            "fails" => world_failed("no Python"),
            "fails once" if before == 1 => world_failed("no space"),
            "says nothing" => json!({}),
            _ => json!({ "outcome": "correct", "reason": "as told" }),
        }
    }
}

/// A log that takes nothing as often as it is told.
#[derive(Default)]
struct Full {
    log: MemoryLog,
    refuses: AtomicU32,
}

impl Log for Full {
    fn append(&self, drafts: Vec<Draft>) -> Result<Vec<Recorded>, LogError> {
        let left =
            self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match left {
            Ok(_) => Err(LogError::DiskFull { path: "memory".into(), last: self.head().0 }),
            Err(_) => self.log.append(drafts),
        }
    }

    fn read_after(&self, seq: Seq, limit: usize) -> Result<Vec<Recorded>, LogError> {
        self.log.read_after(seq, limit)
    }

    fn head(&self) -> (Seq, Digest) {
        self.log.head()
    }
}

struct World {
    log: Arc<Full>,
    blobs: Arc<MemoryBlobs>,
    told: Arc<Told>,
}

impl World {
    fn new() -> Self {
        Self { log: Arc::default(), blobs: Arc::default(), told: Arc::default() }
    }

    fn service(&self) -> Arc<Service> {
        let (log, blobs): (Arc<dyn Log>, Arc<dyn Blobs>) = (self.log.clone(), self.blobs.clone());
        Arc::new(Service::open(log, blobs, 100, 1).unwrap())
    }

    /// Judges until all is over.
    fn judge(&self, service: &Arc<Service>) {
        let (worker, told) = (service.clone(), self.told.clone());
        let thread = std::thread::spawn(move || work(&worker, told.as_ref()));
        for _ in 0..6000 {
            if service.figures().counts.pending == 0 {
                service.stop();
                return thread.join().unwrap();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it never ends");
    }

    fn asked(&self, source: &str) -> usize {
        self.told.asked.lock().unwrap().iter().filter(|asked| *asked == source).count()
    }
}

fn wanted(source: &str) -> Submission {
    let spec = JobSpec {
        reference: Digest::of(b"r"),
        candidate: Digest::of(source.as_bytes()),
        backend: None,
        profile: Rules::Strict,
        seed: 1,
        trials: 5,
        timing: false,
        priority: 0,
    };
    let (reference, candidate) = ("r".to_owned(), source.to_owned());
    Submission { id: JobId::named(source), client: Some(source.into()), reference, candidate, spec }
}

fn object(service: &Service, source: &str) -> Value {
    service.object(&service.view(JobId::named(source)).unwrap()).unwrap()
}

#[test]
fn the_worlds_failure_is_tried_again_within_bounds_and_is_no_verdict() {
    let world = World::new();
    let service = world.service();
    let sources = ["panics", "fails", "fails once", "says nothing", "good"];
    service.submit(sources.map(wanted).to_vec()).unwrap();
    world.judge(&service);
    for source in ["panics", "fails", "says nothing"] {
        let job = object(&service, source);
        assert_eq!((&job["state"], &job["outcome"]), (&json!("failed"), &json!("judge_error")));
        assert_eq!(job["failed_attempts"], ATTEMPTS);
        assert_eq!(job["result"]["outcome"], "judge_error");
        assert_eq!(world.asked(source), ATTEMPTS as usize);
    }
    assert_eq!(object(&service, "fails")["result"], world_failed("no Python"));
    for (source, asked) in [("fails once", 2), ("good", 1)] {
        let job = object(&service, source);
        assert_eq!((&job["state"], &job["outcome"]), (&json!("done"), &json!("correct")));
        assert_eq!(world.asked(source), asked);
    }
    // After a restart all is as it was, and only what has no verdict is tried again when asked for.
    let service = world.service();
    assert_eq!(service.figures().counts.pending, 0);
    service.submit(["fails", "good"].map(wanted).to_vec()).unwrap();
    assert_eq!(service.figures().counts.pending, 1);
    world.judge(&service);
    assert_eq!((world.asked("fails"), world.asked("good")), (2 * ATTEMPTS as usize, 1));
}

#[test]
fn a_full_disk_acknowledges_nothing_and_a_result_waits_for_room() {
    let world = World::new();
    let service = world.service();
    world.log.refuses.store(1, Ordering::SeqCst);
    let refused = service.submit(vec![wanted("good")]).unwrap_err();
    assert!(matches!(refused, Refused::Log(LogError::DiskFull { .. })), "{refused}");
    assert!(matches!(service.view(JobId::named("good")), Err(Refused::Unknown(_))));
    service.submit(vec![wanted("good")]).unwrap();
    world.log.refuses.store(2, Ordering::SeqCst);
    world.judge(&service);
    assert_eq!(object(&service, "good")["outcome"], "correct");
    assert_eq!(world.asked("good"), 1, "it is not judged again for a disk's sake");
    let read = world.log.read_after(Seq(0), 10).unwrap();
    assert!(matches!(read[1].event, Event::JobJudged { .. }) && read.len() == 2);
}
