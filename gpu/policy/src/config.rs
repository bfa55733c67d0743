//! `config.json` of a Llama, Qwen2 or Qwen3 model, checked before any tensor is read.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// The architectures the engine knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`: no projection biases.
    Llama,
    /// `Qwen2ForCausalLM`: biases on the query, key and value projections.
    Qwen2,
    /// `Qwen3ForCausalLM`: each query and key head is normed before it is rotated.
    Qwen3,
}

impl Architecture {
    /// Hugging Face's class and `model_type`.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Architecture::Llama => ("LlamaForCausalLM", "llama"),
            Architecture::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
            Architecture::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
        }
    }

    const ALL: [Architecture; 3] = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];
}

/// Llama 3's stretching of the rotary frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// How far the context is stretched.
    pub factor: f64,
    /// Wavelengths above `original_context / low_freq_factor` are divided by `factor`.
    pub low_freq_factor: f64,
    /// Wavelengths below `original_context / high_freq_factor` stay as they are.
    pub high_freq_factor: f64,
    /// The context before stretching, in tokens.
    pub original_context: f64,
}

/// The shape of a model. Sizes are in elements, `context` in tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which decoder.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab: i64,
    /// Width of the residual stream.
    pub hidden: i64,
    /// Width inside the feed-forward block.
    pub ffn: i64,
    /// Transformer layers.
    pub layers: i64,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: i64,
    /// Width of one head.
    pub head_dim: i64,
    /// Longest sequence.
    pub context: i64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Llama 3 scaling, if any.
    pub rope_scaling: Option<RopeScaling>,
    /// Epsilon of every RMSNorm.
    pub norm_eps: f64,
    /// The output head is the embedding.
    pub tied: bool,
    /// Ids that end an answer, from config.json (generation_config.json may add to them).
    pub eos: Vec<u32>,
}

/// Reads a JSON file into an object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    serde_json::from_str(&text).map_err(|source| Error::Json { path: path.to_owned(), source })
}

/// One config file with typed access that names the key when it fails.
struct Fields {
    path: PathBuf,
    map: Map<String, Value>,
}

impl Fields {
    fn fault(&self, key: &str, problem: impl Into<String>) -> Error {
        Error::Config { path: self.path.clone(), key: key.into(), problem: problem.into() }
    }

    fn size(&self, key: &str) -> Result<i64> {
        let value = self.optional_size(key)?;
        value.ok_or_else(|| self.fault(key, "is missing; it must be a positive integer"))
    }

    fn optional_size(&self, key: &str) -> Result<Option<i64>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(v) => match v.as_i64() {
                Some(n) if (1..1 << 31).contains(&n) => Ok(Some(n)),
                _ => Err(self.fault(key, format!("is {v}; it must be a positive integer"))),
            },
        }
    }

    fn float(&self, key: &str, default: f64) -> Result<f64> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(v) => match v.as_f64() {
                Some(x) if x > 0.0 => Ok(x),
                _ => Err(self.fault(key, format!("is {v}; it must be a positive number"))),
            },
        }
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.map.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn must_be_off(&self, key: &str) -> Result<()> {
        match self.flag(key, false) {
            false => Ok(()),
            true => Err(self.fault(key, "is true; this variant is not implemented")),
        }
    }
}

impl ModelConfig {
    /// Reads `config.json` of the folder `dir`, or the keys of the GGUF file `dir`.
    ///
    /// # Errors
    /// A missing folder or file, bad JSON, an unknown architecture, a missing or absurd key.
    pub fn read(dir: &Path) -> Result<Self> {
        if crate::weights::is_gguf(dir) {
            return crate::gguf::Gguf::open(dir)?.config();
        }
        if !dir.is_dir() {
            let fix = "give the folder of a Hugging Face model or a .gguf file";
            return Err(Error::Missing { path: dir.to_owned(), fix });
        }
        let path = dir.join("config.json");
        if !path.is_file() {
            let fix = "the folder must hold config.json, *.safetensors and tokenizer.json";
            return Err(Error::Missing { path, fix });
        }
        let map = read_object(&path)?;
        Self::from_fields(&Fields { path, map })
    }

    fn from_fields(f: &Fields) -> Result<Self> {
        let architecture = architecture(f)?;
        let (hidden, heads) = (f.size("hidden_size")?, f.size("num_attention_heads")?);
        let kv_heads = f.optional_size("num_key_value_heads")?.unwrap_or(heads);
        // Qwen3's own default does not follow from the width.
        let usual = if architecture == Architecture::Qwen3 { 128 } else { hidden / heads };
        let head_dim = f.optional_size("head_dim")?.unwrap_or(usual);
        if heads % kv_heads != 0 {
            let problem = format!("is {kv_heads} and must divide num_attention_heads = {heads}");
            return Err(f.fault("num_key_value_heads", problem));
        }
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(f.fault("head_dim", format!("is {head_dim}; it must be even")));
        }
        let act = f.map.get("hidden_act").and_then(Value::as_str).unwrap_or("silu");
        if act != "silu" {
            return Err(f.fault("hidden_act", format!("is `{act}`; only `silu` is implemented")));
        }
        for key in ["attention_bias", "mlp_bias", "use_sliding_window"] {
            f.must_be_off(key)?;
        }
        let layers = f.map.get("layer_types").and_then(Value::as_array);
        if let Some(other) = layers.into_iter().flatten().find(|t| *t != "full_attention") {
            return Err(f.fault("layer_types", format!("holds {other}, which is not implemented")));
        }
        let (rope_theta, rope_scaling) = rope(f)?;
        Ok(ModelConfig {
            architecture,
            vocab: f.size("vocab_size")?,
            hidden,
            ffn: f.size("intermediate_size")?,
            layers: f.size("num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim,
            context: f.size("max_position_embeddings")?,
            rope_theta,
            rope_scaling,
            norm_eps: f.float("rms_norm_eps", 1e-6)?,
            tied: f.flag("tie_word_embeddings", false),
            eos: token_ids(f.map.get("eos_token_id")),
        })
    }

    /// The config with `eos` in it, after the checks that a file would meet.
    ///
    /// # Errors
    /// As [`ModelConfig::read`].
    pub fn checked(mut self, eos: &[u32]) -> Result<Self> {
        self.eos = eos.to_vec();
        let map = self.to_json().as_object().cloned().unwrap_or_default();
        Self::from_fields(&Fields { path: "config.json".into(), map })
    }

    /// The config as Hugging Face's `config.json`.
    pub fn to_json(&self) -> Value {
        let (name, kind) = self.architecture.names();
        let mut out = json!({
            "architectures": [name], "model_type": kind, "hidden_act": "silu",
            "vocab_size": self.vocab, "hidden_size": self.hidden,
            "intermediate_size": self.ffn, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta, "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": self.tied, "eos_token_id": self.eos,
        });
        if let Some(s) = self.rope_scaling {
            out["rope_scaling"] = json!({
                "rope_type": "llama3", "factor": s.factor,
                "low_freq_factor": s.low_freq_factor, "high_freq_factor": s.high_freq_factor,
                "original_max_position_embeddings": s.original_context,
            });
        }
        out
    }

    /// Trainable numbers in all.
    pub fn parameters(&self) -> i64 {
        crate::params::layout(self).iter().map(|s| s.shape.iter().product::<i64>()).sum()
    }
}

fn architecture(f: &Fields) -> Result<Architecture> {
    let named = f.map.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    let model_type = f.map.get("model_type").and_then(Value::as_str);
    let known = |a: &Architecture| match (named, model_type) {
        (Some(class), _) => a.names().0 == class,
        (None, kind) => Some(a.names().1) == kind,
    };
    if let Some(found) = Architecture::ALL.into_iter().find(known) {
        return Ok(found);
    }
    let classes = Architecture::ALL.map(|a| a.names().0).join(", ");
    Err(match named.or(model_type) {
        Some(other) => f.fault("architectures", format!("is `{other}`; known are {classes}")),
        None => f.fault("architectures", format!("is missing; known are {classes}")),
    })
}

/// Both spellings: `rope_theta` + `rope_scaling` (transformers 4), `rope_parameters` (5).
fn rope(f: &Fields) -> Result<(f64, Option<RopeScaling>)> {
    let object = |key: &str| f.map.get(key).and_then(Value::as_object).cloned();
    let Some(map) = object("rope_parameters").or_else(|| object("rope_scaling")) else {
        return Ok((f.float("rope_theta", 10_000.0)?, None));
    };
    let r = Fields { path: f.path.clone(), map };
    let theta = r.float("rope_theta", f.float("rope_theta", 10_000.0)?)?;
    let kind = r.map.get("rope_type").or_else(|| r.map.get("type")).and_then(Value::as_str);
    match kind.unwrap_or("default") {
        "default" => Ok((theta, None)),
        "llama3" => Ok((
            theta,
            Some(RopeScaling {
                factor: r.float("factor", 8.0)?,
                low_freq_factor: r.float("low_freq_factor", 1.0)?,
                high_freq_factor: r.float("high_freq_factor", 4.0)?,
                original_context: r.float("original_max_position_embeddings", 8192.0)?,
            }),
        )),
        other => {
            let problem = format!("is `{other}`; `default` and `llama3` are implemented");
            Err(f.fault("rope_type", problem))
        }
    }
}

/// One id or a list of ids.
pub(crate) fn token_ids(value: Option<&Value>) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(one).collect(),
        Some(v) => one(v).into_iter().collect(),
        None => Vec::new(),
    }
}
