//! What the keys and tensor names of a GGUF file mean, in Hugging Face's terms.

use std::path::Path;

use tch::Tensor;

use super::{Container, Value};
use crate::config::{Architecture, ModelConfig, RopeScaling};
use crate::error::{Error, Result};
use crate::rope;

/// A model in a GGUF file.
pub struct Gguf {
    pub(super) file: Container,
    architecture: Architecture,
    prefix: String,
}

impl Gguf {
    /// Opens `path`; tensors are read when they are asked for.
    ///
    /// # Errors
    /// The file's, or an architecture that is not known.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Container::open(path)?;
        let prefix = match file.keys.get("general.architecture") {
            Some(Value::Text(name)) => name.clone(),
            _ => return Err(fault(&file, "general.architecture", "is missing")),
        };
        let known = [Architecture::Llama, Architecture::Qwen2, Architecture::Qwen3];
        let Some(architecture) = known.into_iter().find(|a| a.names().1 == prefix) else {
            let problem = format!("is `{prefix}`; known are llama, qwen2 and qwen3");
            return Err(fault(&file, "general.architecture", problem));
        };
        Ok(Gguf { file, architecture, prefix })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.file.keys.get(&format!("{}.{key}", self.prefix))
    }

    fn optional_size(&self, key: &str) -> Result<Option<i64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Int(n)) if (1..1 << 31).contains(n) => Ok(Some(*n)),
            Some(other) => {
                let problem = format!("is {other:?}; it must be a positive integer");
                Err(fault(&self.file, key, problem))
            }
        }
    }

    fn size(&self, key: &str) -> Result<i64> {
        self.optional_size(key)?.ok_or_else(|| fault(&self.file, key, "is missing"))
    }

    fn float(&self, key: &str, default: f64) -> f64 {
        match self.get(key) {
            Some(Value::Float(x)) => *x,
            _ => default,
        }
    }

    fn shape(&self, name: &str) -> Option<&Vec<i64>> {
        self.file.shapes().find(|(known, _)| *known == name).map(|(_, shape)| shape)
    }

    /// The model's shape.
    ///
    /// # Errors
    /// A missing or absurd key, a stretched context that is not Llama 3's.
    pub fn config(&self) -> Result<ModelConfig> {
        if let Some(Value::Text(kind)) = self.get("rope.scaling.type")
            && kind != "none"
        {
            let problem =
                format!("is `{kind}`; only an unstretched context and Llama 3's are known");
            return Err(fault(&self.file, "rope.scaling.type", problem));
        }
        let (hidden, heads) = (self.size("embedding_length")?, self.size("attention.head_count")?);
        let head_dim = self.optional_size("attention.key_length")?.unwrap_or(hidden / heads);
        let Some(&[vocab, _]) = self.shape("token_embd.weight").map(Vec::as_slice) else {
            let path = self.path().to_owned();
            return Err(Error::MissingTensor { path, names: "token_embd.weight".into() });
        };
        let mut config = ModelConfig {
            architecture: self.architecture,
            vocab,
            hidden,
            ffn: self.size("feed_forward_length")?,
            layers: self.size("block_count")?,
            heads,
            kv_heads: self.optional_size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            context: self.size("context_length")?,
            rope_theta: self.float("rope.freq_base", 10_000.0),
            rope_scaling: None,
            norm_eps: self.float("attention.layer_norm_rms_epsilon", 1e-6),
            tied: self.shape("output.weight").is_none(),
            eos: Vec::new(),
        };
        config.rope_scaling = self.scaling(&config)?;
        let eos = self.token("eos_token_id").into_iter().collect::<Vec<_>>();
        config.checked(&eos)
    }

    /// Llama 3's scaling, told by the factors that the file holds.
    fn scaling(&self, config: &ModelConfig) -> Result<Option<RopeScaling>> {
        if self.shape("rope_freqs.weight").is_none() {
            return Ok(None);
        }
        let factors = Vec::<f32>::try_from(self.file.tensor("rope_freqs.weight")?.f_view([-1])?)?;
        let plain = rope::frequencies(config);
        for factor in [8.0, 32.0] {
            let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
            let original_context = 8192.0;
            let scaling =
                RopeScaling { factor, low_freq_factor, high_freq_factor, original_context };
            let config = ModelConfig { rope_scaling: Some(scaling), ..config.clone() };
            let pairs = plain.iter().zip(rope::frequencies(&config));
            let fits = pairs.zip(&factors).all(|((p, s), f)| (p / s / f - 1.0).abs() < 1e-3);
            if fits && factors.len() == plain.len() {
                return Ok(Some(scaling));
            }
        }
        Err(fault(&self.file, "rope_freqs.weight", "stretches the context otherwise than Llama 3"))
    }

    /// Hugging Face's names and shapes of all tensors but those that are no weights.
    pub(crate) fn shapes(&self) -> Vec<(String, Vec<i64>)> {
        let all = self.file.shapes().filter(|(name, _)| *name != "rope_freqs.weight");
        all.map(|(name, shape)| (renamed(name), shape.clone())).collect()
    }

    /// Calls `f(Hugging Face's name, float32 tensor)` for every weight.
    pub(crate) fn visit(
        &self,
        config: &ModelConfig,
        mut f: impl FnMut(&str, Tensor) -> Result<()>,
    ) -> Result<()> {
        for (name, _) in self.file.shapes().filter(|(name, _)| *name != "rope_freqs.weight") {
            let mut tensor = self.file.tensor(name)?;
            // Llama's files pair neighbouring rows for the rotation; Hugging Face pairs halves.
            if self.architecture == Architecture::Llama {
                if name.ends_with("attn_q.weight") {
                    tensor = halves(&tensor, config.heads)?;
                } else if name.ends_with("attn_k.weight") {
                    tensor = halves(&tensor, config.kv_heads)?;
                }
            }
            f(&renamed(name), tensor)?;
        }
        Ok(())
    }
}

pub(super) fn fault(file: &Container, key: &str, problem: impl Into<String>) -> Error {
    Error::Config { path: file.path().to_owned(), key: key.into(), problem: problem.into() }
}

fn halves(w: &Tensor, heads: i64) -> Result<Tensor> {
    let size = w.size();
    Ok(w.f_view([heads, -1, 2, size[1]])?.f_transpose(1, 2)?.f_reshape(&size[..])?)
}

/// Hugging Face's name; what has none stays as it is, and is then unknown.
fn renamed(name: &str) -> String {
    let fixed = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(fixed) = fixed {
        return fixed.into();
    }
    let parts: Vec<&str> = name.split('.').collect();
    if let ["blk", layer, part, end] = parts[..] {
        let part = match part {
            "attn_norm" => "input_layernorm",
            "ffn_norm" => "post_attention_layernorm",
            "attn_q" => "self_attn.q_proj",
            "attn_k" => "self_attn.k_proj",
            "attn_v" => "self_attn.v_proj",
            "attn_q_norm" => "self_attn.q_norm",
            "attn_k_norm" => "self_attn.k_norm",
            "attn_output" => "self_attn.o_proj",
            "ffn_gate" => "mlp.gate_proj",
            "ffn_up" => "mlp.up_proj",
            "ffn_down" => "mlp.down_proj",
            _ => return name.into(),
        };
        return format!("model.layers.{layer}.{part}.{end}");
    }
    name.into()
}
