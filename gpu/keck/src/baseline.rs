//! The reference as the other side of a timing: its worker, and the inputs that take turns.

use std::time::Duration;

use serde_json::json;

use crate::error::Error;
use crate::judge::Judge;
use crate::reference::{AtFault, ReferenceTrial, derive, heard};
use crate::session::{Answer, Reply, Session};
use crate::wire::Handed;

impl Judge {
    /// A worker that was told to import a module and build its model, and its answer.
    pub(crate) fn load_module(&self, source: &str, seed: u64) -> Result<(Session, Answer), Error> {
        let mut session = self.worker("module")?;
        let question = json!({ "do": "load", "seed": derive(seed, "init", 0) });
        let blobs = [("source", Handed::Bytes(source.as_bytes()))];
        let answer = self.ask(&mut session, question, &blobs, self.config.import_timeout)?;
        Ok((session, answer))
    }

    /// A worker that has imported a module and built its model.
    pub(crate) fn load_reference(
        &self,
        source: &str,
        seed: u64,
    ) -> Result<Result<(Session, Reply), AtFault>, Error> {
        let (session, answer) = self.load_module(source, seed)?;
        Ok(heard(answer).map(|reply| (session, reply)))
    }

    /// Keeps a reference's worker for the next kernel that is timed beside it.
    pub(crate) fn park(&self, key: blake3::Hash, mut session: Session) -> Result<(), Error> {
        let rested =
            self.ask(&mut session, json!({ "do": "rest" }), &[], self.config.trial_timeout)?;
        if heard(rested).is_ok() {
            self.parked.put(key, session);
        }
        Ok(())
    }

    /// Inputs of the task as it is given, and the reference's outputs for them.
    pub(crate) fn timed_trial(
        &self,
        session: &mut Session,
        seed: u64,
    ) -> Result<Result<ReferenceTrial, AtFault>, Error> {
        let question = json!({
            "do": "trial", "seed": seed, "scale": "plain", "perturb": false, "twice": false,
            "wide": false,
        });
        let answer = self.ask_module(session, question)?;
        Ok(heard(answer).map(|mut reply| {
            let after = reply.take("after");
            let mut take = |name: &str| reply.take(name).unwrap_or_default();
            ReferenceTrial {
                seed,
                varied: "timed".to_owned(),
                products: false,
                wall: Duration::ZERO,
                inputs: take("inputs"),
                state: take("state"),
                outputs: take("first"),
                after,
            }
        }))
    }
}
