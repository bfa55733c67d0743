//! The rules that a run is scored by again: its own, with some of them changed.

use crate::config::{BadConfig, Rules, RunConfig};
use crate::rules::verdict::Tolerance;

/// What the static rules say of a kernel's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purity {
    /// What they said when the run was made.
    Recorded,
    /// What those of this program say.
    Current,
    /// Nothing: what they refused is not known, since it never ran.
    Off,
}

/// Rules to score by.
#[derive(Clone, Debug, PartialEq)]
pub struct Rulebook {
    /// Settings of the run, some of them changed.
    pub config: RunConfig,
    /// How much error is allowed.
    pub tolerance: Tolerance,
    /// Which static rules hold.
    pub purity: Purity,
    /// Settings that differ from the run's: they hold from its start to its end.
    changes: Vec<(String, String)>,
}

/// Settings of a config that only change how recorded facts are scored. All others change what is drawn,
/// measured or trained, and that only a run can tell.
const SCORING: &[&str] = &[
    "judge.profile",
    "coder.alpha",
    "coder.beta",
    "coder.noise-floor",
    "coder.pool.capacity",
    "coder.pool.replay-percent",
    "proposer.target",
    "proposer.invalid-reward",
    "advantage.std-floor",
    "validator.rules",
    "validator.trials",
];

/// Rules that are no settings of a config.
const ASIDE: &[&str] = &["judge.tolerance", "judge.tolerance-scale", "judge.purity"];

impl Rulebook {
    /// The rules of the run itself.
    pub fn of(config: &RunConfig) -> Self {
        let (config, changes) = (config.clone(), Vec::new());
        Self { config, tolerance: Tolerance::USUAL, purity: Purity::Recorded, changes }
    }

    /// The same changes to other settings of the run: its own have changed.
    pub fn follow(&mut self, config: &RunConfig) -> Result<(), BadConfig> {
        let mut config = config.clone();
        for (key, value) in &self.changes {
            config = config.with(key, Some(value))?;
        }
        self.config = config;
        Ok(())
    }

    /// Changes one rule, as `key=value`. The error names the key and what would be right.
    pub fn set(&mut self, assignment: &str) -> Result<(), BadConfig> {
        let (key, value) = assignment
            .split_once('=')
            .ok_or_else(|| BadConfig(format!("`{assignment}` has no value: write `key=value`")))?;
        let (key, value) = (key.trim(), value.trim());
        match key {
            "judge.tolerance" => self.tolerance.flat = positive(key, value)?,
            "judge.tolerance-scale" => self.tolerance.scale = positive(key, value)?,
            "judge.purity" => self.purity = purity(key, value)?,
            _ if SCORING.contains(&key) => {
                self.config = self.config.with(key, Some(value))?;
                self.changes.push((key.to_owned(), value.to_owned()));
            }
            _ => return Err(refused(&self.config, key, value)),
        }
        Ok(())
    }
}

impl Rulebook {
    /// Refuses a tolerance that the profile does not use: that it changes nothing would say nothing.
    pub fn check(&self) -> Result<(), BadConfig> {
        let Tolerance { flat, scale } = Tolerance::USUAL;
        match self.config.judge.profile {
            Rules::Strict if self.tolerance.flat != flat => Err(BadConfig(
                "judge.tolerance: it is the paper profile's; judge.tolerance-scale is a factor on those of \
                 strict, or set judge.profile=paper too"
                    .to_owned(),
            )),
            Rules::Paper if self.tolerance.scale != scale => Err(BadConfig(
                "judge.tolerance-scale: it is the strict profile's; the paper's is judge.tolerance, or set \
                 judge.profile=strict too"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

fn refused(config: &RunConfig, key: &str, value: &str) -> BadConfig {
    let known = [SCORING, ASIDE].concat().join(", ");
    // A setting that exists is another mistake than a word that does not.
    let why = match config.with(key, Some(value)) {
        Err(BadConfig(why)) if why.contains("no such setting") => "there is no such setting",
        Ok(_) | Err(_) => {
            "it changes what is drawn, measured or trained, which no log can tell: run it"
        }
    };
    BadConfig(format!("{key}: {why}; what can be scored again: {known}"))
}

fn positive(key: &str, value: &str) -> Result<f64, BadConfig> {
    let number = value.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    number.ok_or_else(|| BadConfig(format!("{key}={value}: not a number from 0 up")))
}

fn purity(key: &str, value: &str) -> Result<Purity, BadConfig> {
    match value.trim_matches('"') {
        "recorded" => Ok(Purity::Recorded),
        "current" => Ok(Purity::Current),
        "off" => Ok(Purity::Off),
        _ => Err(BadConfig(format!("{key}={value}: not one of recorded, current, off"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_scoring_settings_exist_and_others_are_refused_with_the_reason() {
        let config = RunConfig::parse(crate::config::EXAMPLE).unwrap();
        let mut rules = Rulebook::of(&config);
        for key in SCORING {
            let refusal = rules.set(&format!("{key}=none")).unwrap_err().to_string();
            assert!(!refusal.contains("no such setting"), "{refusal}");
        }
        assert_eq!(rules, Rulebook::of(&config));
        rules.set("judge.tolerance = 1e-3").unwrap();
        rules.set("judge.purity=off").unwrap();
        let mut strict = rules.clone();
        strict.set("judge.profile=strict").unwrap();
        assert!(strict.check().unwrap_err().to_string().contains("judge.profile=paper"));
        let mut paper = rules.clone();
        paper.set("judge.profile=paper").unwrap();
        paper.check().unwrap();
        paper.set("judge.tolerance-scale=2").unwrap();
        assert!(paper.check().unwrap_err().to_string().contains("judge.profile=strict"));
        assert_eq!((rules.tolerance.flat, rules.purity), (1e-3, Purity::Off));
        let mut refused = |text: &str| rules.set(text).unwrap_err().to_string();
        assert!(
            refused("judge.profil=paper").starts_with("judge.profil: there is no such setting")
        );
        assert!(refused("judge.profil=paper").contains("judge.profile,"));
        assert!(refused("seed=3").contains("run it"));
        assert!(refused("judge.tolerance=-1").contains("judge.tolerance=-1: not a number"));
        assert!(refused("judge.purity=none").contains("recorded, current, off"));
        assert!(refused("judge.profile").contains("write `key=value`"));
    }
}
