use super::*;
use crate::config::Rules;

fn spec(candidate: &str, priority: i32) -> JobSpec {
    JobSpec {
        reference: Digest::of(b"reference"),
        candidate: Digest::of(candidate.as_bytes()),
        backend: None,
        profile: Rules::Strict,
        seed: 1,
        trials: 5,
        timing: false,
        priority,
    }
}

fn submit(name: &str, priority: i32) -> Event {
    let (job, client) = (JobId::named(name), Some(name.to_owned()));
    Event::JobSubmitted { job, client, spec: spec(name, priority) }
}

fn fold(events: &[Event]) -> Jobs {
    let mut jobs = Jobs::default();
    for (seq, event) in (1..).zip(events) {
        jobs.apply(Seq(seq), event).unwrap();
    }
    jobs
}

#[test]
fn higher_priority_is_first_then_arrival() {
    let jobs = fold(&[submit("a", 0), submit("b", 5), submit("c", 0), submit("d", 5)]);
    let mut order = Vec::new();
    while let Some((id, _)) = jobs.next(|id| order.contains(&id)) {
        order.push(id);
    }
    assert_eq!(order, ["b", "d", "a", "c"].map(JobId::named));
    let arrivals: Vec<_> = jobs.after(Seq(1)).map(|(id, _)| id).collect();
    assert_eq!(arrivals, ["b", "c", "d"].map(JobId::named));
}

#[test]
fn a_verdict_is_final_and_anything_less_may_be_asked_for_again() {
    let job = JobId::named("a");
    let failed =
        |attempt, given_up| Event::JobFailed { job, attempt, error: "no space".into(), given_up };
    let judged = Event::JobJudged { job, outcome: Outcome::Correct, result: Digest::of(b"r") };
    let cancelled = Event::JobCancelled { job };
    let mut jobs = fold(&[submit("a", 0), failed(1, false), failed(2, true)]);
    assert_eq!(jobs.counts(), Counts { given_up: 1, ..Counts::default() });
    assert!(jobs.check(&judged).is_err());
    jobs.apply(Seq(4), &submit("a", 3)).unwrap();
    assert!(jobs.check(&failed(3, false)).is_err(), "attempts are counted anew");
    jobs.apply(Seq(5), &cancelled).unwrap();
    assert!(jobs.next(|_| false).is_none());
    jobs.apply(Seq(6), &submit("a", 3)).unwrap();
    jobs.apply(Seq(7), &judged).unwrap();
    assert_eq!(jobs.counts(), Counts { judged: 1, ..Counts::default() });
    assert_eq!(jobs.admit(job, &spec("a", 9)), Admission::Known);
    assert_eq!(jobs.admit(job, &spec("b", 3)), Admission::Conflict);
    for late in [submit("a", 3), judged, cancelled, failed(1, false), Event::RunFinished] {
        assert!(jobs.apply(Seq(8), &late).is_err(), "{late:?}");
    }
    assert_eq!(jobs.last(), Seq(7));
    assert_eq!(jobs.after(Seq(0)).count(), 1);
}
