//! A policy: a model, its text side, and how to open both from a folder.

use std::path::Path;

use tch::{Cuda, Device, Kind};

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::params::Params;
use crate::tokenizer::Text;

/// How to open a model.
#[derive(Clone, Copy, Debug)]
pub struct Open {
    /// Where it computes.
    pub device: Device,
    /// The compute type; `None` is float32 on a CPU and bfloat16 on CUDA.
    pub kind: Option<Kind>,
    /// Keep a float32 master and a graph for gradients.
    pub trainable: bool,
}

impl Open {
    /// The compute type in force.
    pub fn kind(&self) -> Kind {
        let default = if self.device == Device::Cpu { Kind::Float } else { Kind::BFloat16 };
        self.kind.unwrap_or(default)
    }
}

/// A model that reads and writes text.
pub struct Policy {
    /// The decoder.
    pub model: Model,
    /// Its tokenizer and chat template.
    pub text: Text,
}

impl Policy {
    /// Opens the Hugging Face folder or GGUF file `dir`, all of it or nothing.
    ///
    /// # Errors
    /// See [`Error`]: every missing, damaged or mismatched part has a name.
    pub fn open(dir: &Path, open: Open) -> Result<Self> {
        let config = ModelConfig::read(dir)?;
        let text = Text::read(dir, &config)?;
        let params = Params::read(dir, &config, open.kind(), open.device, open.trainable)?;
        Ok(Policy { model: Model::new(config, params)?, text })
    }

    /// Opens `dir` to be scored only: its weights stay in the host's memory, and layers are sent to
    /// `open.device` when they are needed.
    ///
    /// # Errors
    /// As [`Policy::open`]; a model that is to be trained cannot be opened so.
    pub fn open_hosted(dir: &Path, open: Open) -> Result<Self> {
        if open.trainable {
            return Err(Error::Request("weights in the host's memory cannot be trained".into()));
        }
        let config = ModelConfig::read(dir)?;
        let text = Text::read(dir, &config)?;
        let params = Params::read(dir, &config, open.kind(), Device::Cpu, false)?;
        let model = Model::on(config, params.pinned(open.device)?, open.device)?;
        Ok(Policy { model, text })
    }

    /// A new model over the tokenizer of the folder `tokenizer`, with random weights.
    /// `shape` is asked for the config of a vocabulary of the size it is given.
    ///
    /// # Errors
    /// The tokenizer's, or a shape that `config.json` could not hold.
    pub fn random(
        tokenizer: &Path,
        shape: impl Fn(i64) -> ModelConfig,
        seed: u64,
        open: Open,
    ) -> Result<Self> {
        let text = Text::read(tokenizer, &shape(1 << 31))?;
        let vocab = (text.size() as i64 + 63) / 64 * 64;
        let config = shape(vocab).checked(&text.stop)?;
        let params = Params::random(&config, seed, open.kind(), open.device)?;
        Ok(Policy { model: Model::new(config, params)?, text })
    }
}

/// `cpu`, `cuda` or `cuda:N`, checked against what this machine has.
///
/// # Errors
/// Another word, or a CUDA device that is not there.
pub fn device(word: &str) -> Result<Device> {
    let index = match word.split_once(':') {
        None if word == "cpu" => return Ok(Device::Cpu),
        None if word == "cuda" => Some(0),
        Some(("cuda", n)) => n.parse::<usize>().ok(),
        _ => None,
    };
    let Some(index) = index else {
        return Err(Error::Request(format!("device `{word}`: write cpu, cuda or cuda:N")));
    };
    let count = if Cuda::is_available() { Cuda::device_count() } else { 0 };
    if index as i64 >= count {
        return Err(Error::Request(format!("device `{word}`: libtorch sees {count} CUDA devices")));
    }
    Ok(Device::Cuda(index))
}

/// `f32`, `bf16` or `f16`.
pub fn kind(word: &str) -> Result<Kind> {
    match word {
        "f32" => Ok(Kind::Float),
        "bf16" => Ok(Kind::BFloat16),
        "f16" => Ok(Kind::Half),
        _ => Err(Error::Request(format!("dtype `{word}`: write f32, bf16 or f16"))),
    }
}
