//! The judge's own work on the device: whether it is well, and what it reaches.

use std::time::{Duration, Instant};

use events::outcome::{Failure, FailureKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Error;
use crate::judge::{Judge, lock};
use crate::session::{Answer, Reply};

/// After this long an unwell device is looked at again.
const QUARANTINE: Duration = Duration::from_secs(30);
/// A healthy device answers in milliseconds; its driver may be clearing up after a candidate.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a device reaches, measured on it: bytes and floating-point operations per ns.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Rates {
    /// Device memory, read or copied.
    pub bytes: f64,
    /// Dense matrix products in bfloat16.
    pub bf16: f64,
    /// In single precision with TF32.
    pub tf32: f64,
    /// In full single precision.
    pub fp32: f64,
}

/// Whether a candidate's end may have left the device in a bad state.
pub(crate) fn doubtful(failure: &Failure) -> bool {
    let kinds = [FailureKind::IllegalAccess, FailureKind::Timeout, FailureKind::SandboxViolation];
    kinds.contains(&failure.kind) || failure.detail.contains("CUDA error")
}

impl Judge {
    /// The world's failure while the device is in quarantine. It is looked at again now and then.
    pub(crate) fn device_is_usable(&self) -> Result<(), Error> {
        let since = *lock(&self.unwell);
        match since {
            None => Ok(()),
            Some(since) if since.elapsed() < QUARANTINE => {
                Err(Error::DeviceLost("it is in quarantine".to_owned()))
            }
            Some(_) => self.probe(),
        }
    }

    /// Proves the device healthy with work whose answer is known, or puts it into quarantine.
    pub(crate) fn probe(&self) -> Result<(), Error> {
        if self.device.kind() == "cpu" {
            return Ok(());
        }
        let found = self.ask_probe("healthy").and_then(|reply| match reply["healthy"] == true {
            true => Ok(()),
            false => Err(Error::DeviceLost("it computes wrong numbers".to_owned())),
        });
        *lock(&self.unwell) = found.is_err().then(Instant::now);
        found
    }

    /// What the device reaches; measured at the first call, with the device alone.
    pub(crate) fn rates(&self) -> Result<Rates, Error> {
        if let Some(rates) = *lock(&self.rates) {
            return Ok(rates);
        }
        // The lease first: whoever holds it may be here too.
        let _alone = self.device_alone();
        let mut known = lock(&self.rates);
        if let Some(rates) = *known {
            return Ok(rates);
        }
        let rates: Rates = serde_json::from_value(self.ask_probe("rates")?)
            .map_err(|e| Error::Bug(format!("rates of the device: {e}")))?;
        *known = Some(rates);
        Ok(rates)
    }

    fn ask_probe(&self, what: &str) -> Result<Value, Error> {
        let lost = |why: String| Error::DeviceLost(why);
        let mut session = self.worker("probe").map_err(|e| lost(e.to_string()))?;
        let question = json!({ "do": what });
        match self.ask(&mut session, question, &[], PATIENCE)? {
            Answer::Said(Reply { value, .. }) if value["failed"].is_null() => Ok(value),
            Answer::Said(reply) => Err(lost(reply.value["message"].to_string())),
            Answer::TimedOut => Err(lost("no answer".to_owned())),
            Answer::Gone(why) => Err(lost(why.to_owned())),
        }
    }
}
