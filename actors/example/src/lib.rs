//! An attached actor in Rust: a curriculum. When enough of a round's modules are valid, it asks for one
//! more API in the largest sets, from the next round on.

use actors::attached::{Answer, Attached, Filter, Outcome};
use events::config::RunConfig;
use events::event::{Event, Recorded, Validity};
use events::ids::Seq;
use events::intent::{At, Boundary, Intent};

/// The setting that it changes.
const KEY: &str = "sampler.apis-max";

/// Counts by round. It keeps nothing outside the log: attached again, it reads what it has asked for.
#[derive(Debug)]
pub struct Curriculum {
    /// Share of valid modules from which it asks for more.
    enough: f64,
    /// Most APIs that it asks for.
    most: u32,
    /// APIs in the largest sets, as last asked for.
    now: u32,
    valid: u32,
    all: u32,
    /// Whether it sees what happens now, not what is over.
    caught_up: bool,
    /// Its refused intents, for whoever runs it.
    pub refused: Vec<String>,
}

impl Curriculum {
    /// Asks for more where a share `enough` of a round's modules is valid, for at most `most` APIs.
    pub fn new(enough: f64, most: u32) -> Self {
        Self { enough, most, now: 0, valid: 0, all: 0, caught_up: false, refused: Vec::new() }
    }

    /// What it asks for at the end of a round.
    fn round(&mut self) -> Vec<Intent> {
        let (valid, all) = (std::mem::take(&mut self.valid), std::mem::take(&mut self.all));
        let enough = all > 0 && f64::from(valid) >= self.enough * f64::from(all);
        // What is over is over: whoever looks back asks for nothing.
        if !(enough && self.caught_up && self.now < self.most) {
            return Vec::new();
        }
        let (key, value) = (KEY.to_owned(), Some((self.now + 1).to_string()));
        vec![Intent::Set { key, value, at: Some(At::Next(Boundary::Round)) }]
    }
}

impl Attached for Curriculum {
    fn filter(&self) -> Filter {
        Filter::of(&[
            "RunStarted",
            "SettingChanged",
            "SettingPlanned",
            "ModuleValidated",
            "RoundFinished",
        ])
    }

    fn after(&mut self, _: Seq) -> Seq {
        Seq(0)
    }

    fn see(&mut self, recorded: &Recorded) -> Result<Vec<Intent>, String> {
        match &recorded.event {
            Event::RunStarted { config, .. } => {
                let config = RunConfig::parse(config).map_err(|error| error.to_string())?;
                self.now = config.sampler.apis_max.get();
            }
            Event::SettingChanged { key, value: Some(value) }
            | Event::SettingPlanned { key, value: Some(value), .. }
                if key == KEY =>
            {
                self.now = value.parse().map_err(|_| format!("{KEY} is {value}"))?;
            }
            Event::ModuleValidated { validity, .. } => {
                self.all += 1;
                self.valid += u32::from(*validity == Validity::Valid);
            }
            Event::RoundFinished { .. } => return Ok(self.round()),
            _ => {}
        }
        Ok(Vec::new())
    }

    fn caught_up(&mut self) -> Result<Vec<Intent>, String> {
        self.caught_up = true;
        Ok(Vec::new())
    }

    fn answered(&mut self, answer: &Answer) {
        if let Outcome::Refused(refused) = &answer.outcome {
            self.refused.push(refused.to_string());
        }
    }
}
