//! The settings of one run. Whatever changes the science is here and is recorded in `RunStarted`;
//! what only changes the machine (paths, ports, devices) is not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::Role;
use crate::intent::ActorName;
use crate::outcome::Backend;
use crate::rules::extract::Extractor;
use crate::sample::Sampling;

mod built_in;
pub mod change;
mod lora;
mod objective;
mod value;

pub use built_in::{BuiltIn, Metric};
pub use lora::{Lora, Target};
pub use objective::{Aggregate, Penalty, Ratio, Variant};
pub use value::{Positive, Probability, Share, UpTo};

/// One run, as TOML with kebab-case keys. Unknown keys are refused by name and line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RunConfig {
    /// Root of every random stream.
    pub seed: UpTo<{ i64::MAX as u64 }>,
    /// Rounds of a Proposer phase and a Coder phase.
    pub rounds: Positive,
    /// How code is found in answers: `parsed`; absent it is `fences`, as it was before this setting.
    #[serde(default, skip_serializing_if = "Extractor::is_default")]
    pub extractor: Extractor,
    /// The model that writes modules.
    pub proposer: ProposerConfig,
    /// The model that writes kernels.
    pub coder: CoderConfig,
    /// How API sets are drawn.
    pub sampler: SamplerConfig,
    /// How modules are checked.
    pub validator: ValidatorConfig,
    /// How kernels are judged.
    pub judge: JudgeConfig,
    /// How rewards become advantages.
    pub advantage: AdvantageConfig,
    /// How gradient steps are taken.
    pub trainer: TrainerConfig,
    /// Actors that are attached from the start, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub actors: BTreeMap<ActorName, BuiltIn>,
}

/// Drawing and optimising settings that both models have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PolicyConfig {
    /// Folder in the Hugging Face layout, relative to the config file.
    pub init: String,
    /// The user message; `{apis}` (Proposer) or `{module}` (Coder) is replaced.
    pub prompt: String,
    /// Optimizer steps in each phase.
    pub steps_per_phase: Positive,
    /// Prompts in each step's batch.
    pub batch_prompts: Positive,
    /// Samples drawn for each prompt; their rewards are compared.
    pub group_size: Positive,
    /// Divides the logits. Above zero: greedy groups are identical and teach nothing.
    pub temperature: Share<100>,
    /// Nucleus of the draw.
    pub top_p: Probability,
    /// Most probable tokens to draw from; 0 is no limit.
    pub top_k: u32,
    /// Longest prompt, in tokens.
    pub max_prompt_tokens: Positive,
    /// Longest answer, in tokens.
    pub max_output_tokens: Positive,
    /// AdamW's learning rate.
    pub learning_rate: Probability,
    /// AdamW's decoupled weight decay.
    pub weight_decay: Probability,
    /// Largest global gradient norm.
    pub grad_clip: Share<1_000_000>,
    /// γ, the weight of KL(π‖π_ref).
    pub kl_coefficient: Probability,
    /// ε of the clipped ratio.
    pub clip_ratio: Probability,
    /// After so many of its own optimizer steps the policy takes no more: it still samples, and the
    /// other one trains on what it draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_at_step: Option<u32>,
}

impl PolicyConfig {
    /// How samples are drawn.
    pub fn sampling(&self) -> Sampling {
        Sampling { temperature: self.temperature.get(), top_p: self.top_p.get(), top_k: self.top_k }
    }
}

/// The Proposer's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProposerConfig {
    /// Drawing and optimising.
    pub policy: PolicyConfig,
    /// Kernels drawn for each valid module, to see how often the Coder is right.
    pub coder_samples: Positive,
    /// The share of right kernels that earns the full reward.
    pub target: Probability,
    /// ρ: the reward of an invalid module, at most 0.
    pub invalid_reward: f64,
}

/// The Coder's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CoderConfig {
    /// Drawing and optimising.
    pub policy: PolicyConfig,
    /// α: share of right kernels from which speed counts. 0 = no gate, above 1 = never.
    pub alpha: Share<2>,
    /// β: weight of speed.
    pub beta: Share<100>,
    /// Smallest spread (max − min, relative to max) of speed-ups that is more than noise; 0 = paper.
    pub noise_floor: Probability,
    /// Which modules are trained on.
    pub pool: Pool,
}

/// Where the Coder's modules come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pool {
    /// Valid modules kept, newest first.
    pub capacity: Positive,
    /// Modules of older rounds in each hundred.
    pub replay_percent: UpTo<100>,
    /// Who comes first of modules that tell as much. Since 0.1.
    #[serde(default, skip_serializing_if = "Ties::is_default")]
    pub ties: Ties,
}

/// What orders modules that tell as much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ties {
    /// Ids with the run's name in them: two runs of one seed part. As it was before this setting.
    #[default]
    RunId,
    /// Ids of the place alone: runs of one seed choose alike. All new runs have it.
    Coordinates,
}

impl Ties {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How API sets are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct SamplerConfig {
    /// Counts file (see `rules::api_table`), relative to the config file.
    pub table: String,
    /// Fewest APIs in a set.
    pub apis_min: Positive,
    /// Most APIs in a set.
    pub apis_max: Positive,
    /// Weight of an API is multiplied by `1 + weakness × (share of its kernels that failed in the
    /// round before)`; 0 = no weighting.
    pub weakness: Share<1000>,
}

/// Which rules judge modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// Exactly what the paper says.
    Paper,
    /// Also what it lacks.
    Strict,
}

/// How modules are checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ValidatorConfig {
    /// Which rules.
    pub rules: Rules,
    /// Random inputs tried.
    pub trials: Positive,
}

/// How kernels are judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct JudgeConfig {
    /// What the Coder is asked to write.
    pub backend: Backend,
    /// Which verdict is trained on.
    pub profile: Rules,
    /// Comparisons on fresh inputs.
    pub trials: Positive,
    /// Whether Coder phases are timed; needs a GPU. Without it the speed term is 0.
    pub timing: bool,
}

/// How rewards become advantages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AdvantageConfig {
    /// The deviation that is divided by is at least this; 0 = paper.
    pub std_floor: Share<10>,
}

/// Where the ratio's denominator comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OldLogprobs {
    /// The trainer recomputes them before the update.
    Recompute,
    /// Those that the sampler emitted.
    Sampler,
}

/// How gradient steps are taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainerConfig {
    /// Where the ratio's denominator comes from.
    pub old_logprobs: OldLogprobs,
    /// Tokens in one forward and backward pass; memory, not science, but summation order.
    pub micro_tokens: Positive,
    /// How often the world may fail at one piece of work before the run pauses.
    pub retries: Positive,
    /// Newest checkpoints of each policy that are kept, beside those that phases ended with; absent: all
    /// are. Since 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<Positive>,
    /// Of older ones every Nth is kept too; needs `keep-last`. Since 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_every: Option<Positive>,
    /// What is minimised, where it is not the paper's objective. Since 0.1.
    #[serde(default, skip_serializing_if = "Variant::is_the_papers")]
    pub objective: Variant,
    /// What is trained instead of all weights. Since 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

/// The config is not right.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct BadConfig(pub String);

impl RunConfig {
    /// Drawing and optimising settings of `role`.
    pub fn policy(&self, role: Role) -> &PolicyConfig {
        match role {
            Role::Proposer => &self.proposer.policy,
            Role::Coder => &self.coder.policy,
        }
    }

    /// Reads and checks a config. The error names key, line and what would be right.
    pub fn parse(text: &str) -> Result<Self, BadConfig> {
        let config: Self = toml::from_str(text).map_err(|e| BadConfig(e.to_string()))?;
        config.check()?;
        Ok(config)
    }

    /// The canonical text, as it is recorded.
    pub fn to_text(&self) -> Result<String, BadConfig> {
        toml::to_string(self).map_err(|e| BadConfig(e.to_string()))
    }

    /// The config with one setting changed, as [`crate::event::Event::SettingChanged`] says.
    pub fn with(&self, key: &str, value: Option<&str>) -> Result<Self, BadConfig> {
        change::with(self, key, value)
    }

    /// Whether a setting that an actor will change can have that value.
    fn can_set(&self, actor: &BuiltIn) -> Result<(), String> {
        let BuiltIn::Set { key, value, .. } = actor else { return Ok(()) };
        let alone = Self { actors: BTreeMap::new(), ..self.clone() };
        alone.with(key, Some(value)).map(drop).map_err(|error| error.to_string())
    }

    fn check(&self) -> Result<(), BadConfig> {
        let refuse = |text: String| Err(BadConfig(text));
        if !self.proposer.policy.prompt.contains("{apis}") {
            return refuse("proposer.policy.prompt: must contain `{apis}`".to_owned());
        }
        if !self.coder.policy.prompt.contains("{module}") {
            return refuse("coder.policy.prompt: must contain `{module}`".to_owned());
        }
        if self.sampler.apis_min.get() > self.sampler.apis_max.get() {
            return refuse(format!(
                "sampler.apis-min: {} is above sampler.apis-max ({})",
                self.sampler.apis_min.get(),
                self.sampler.apis_max.get()
            ));
        }
        if !(-100.0..=0.0).contains(&self.proposer.invalid_reward) {
            return refuse("proposer.invalid-reward: must be between -100 and 0".to_owned());
        }
        let trials = [("judge", self.judge.trials), ("validator", self.validator.trials)];
        for (name, trials) in trials.map(|(name, trials)| (name, trials.get())) {
            if trials > TRIALS_MAX {
                return refuse(format!(
                    "{name}.trials: {trials}; at most {TRIALS_MAX} are compared"
                ));
            }
        }
        for (name, actor) in &self.actors {
            let checked = actor.check().and_then(|()| self.can_set(actor));
            checked.map_err(|why| BadConfig(format!("actors.{name}: {why}")))?;
        }
        if self.trainer.keep_every.is_some() && self.trainer.keep_last.is_none() {
            let text = "trainer.keep-every: without trainer.keep-last all checkpoints are kept";
            return refuse(text.to_owned());
        }
        objective::check(&self.trainer).map_err(BadConfig)?;
        lora::check(&self.trainer).map_err(BadConfig)?;
        for (name, policy) in [("proposer", &self.proposer.policy), ("coder", &self.coder.policy)] {
            if policy.temperature.get() <= 0.0 {
                return refuse(format!(
                    "{name}.policy.temperature: must be above 0: greedy samples of one prompt are equal"
                ));
            }
            let samples =
                u64::from(policy.batch_prompts.get()) * u64::from(policy.group_size.get());
            if samples > SAMPLES_MAX {
                return refuse(format!(
                    "{name}.policy.group-size: {samples} samples in a step; at most {SAMPLES_MAX} are drawn"
                ));
            }
            if policy.group_size.get() < 2 {
                return refuse(format!(
                    "{name}.policy.group-size: must be at least 2: rewards are compared in a group"
                ));
            }
        }
        Ok(())
    }
}

/// Samples of a step at most: far beyond what anyone draws, and still planned in a moment.
const SAMPLES_MAX: u64 = 1 << 20;

/// Inputs that one module or kernel is tried on at most: each is held in memory.
const TRIALS_MAX: u32 = 100;

/// A complete config with the paper's settings, for tests of this workspace.
#[doc(hidden)]
pub const EXAMPLE: &str = include_str!("config/example.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_are_bounded() {
        for name in ["judge", "validator"] {
            let config = RunConfig::parse(EXAMPLE).unwrap();
            config.with(&format!("{name}.trials"), Some("100")).unwrap();
            let error =
                config.with(&format!("{name}.trials"), Some("101")).unwrap_err().to_string();
            assert!(error.contains("at most 100 are compared"), "{error}");
        }
    }

    #[test]
    fn a_config_from_before_the_extractors_keeps_its_text_and_its_meaning() {
        let old = EXAMPLE.replace("extractor = \"parsed\"\n", "");
        let config = RunConfig::parse(&old).unwrap();
        assert_eq!(config.extractor, Extractor::Fences);
        assert!(!config.to_text().unwrap().contains("extractor"));
        let new = RunConfig::parse(EXAMPLE).unwrap();
        assert_eq!(new.extractor, Extractor::Parsed);
        assert_eq!(RunConfig::parse(&new.to_text().unwrap()).unwrap(), new);
        let thought = "<think>\n```\na\n</think>\n```\nclass ModelNew:\n    pass\n```\n";
        let codes = [&config, &new].map(|c| c.extractor.code(thought, Role::Coder).unwrap());
        assert_eq!(codes, ["a\n</think>\n", "class ModelNew:\n    pass\n"]);
    }
}
