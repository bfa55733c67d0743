//! GGUF files written here, by hand, are read as what they hold; damaged ones are refused by name.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::{Path, PathBuf};

use policy::config::{Architecture, ModelConfig};
use policy::params::Params;
use policy::{Open, Policy};
use tch::{Device, Kind, Tensor};

const OPEN: Open = Open { device: Device::Cpu, kind: None, trainable: false };

/// A file being put together.
#[derive(Default)]
struct File {
    keys: Vec<u8>,
    count: u64,
    infos: Vec<u8>,
    tensors: u64,
    data: Vec<u8>,
}

impl File {
    fn text(into: &mut Vec<u8>, text: &str) {
        into.extend((text.len() as u64).to_le_bytes());
        into.extend(text.as_bytes());
    }

    fn key(&mut self, name: &str, kind: u32) -> &mut Vec<u8> {
        self.count += 1;
        Self::text(&mut self.keys, name);
        self.keys.extend(kind.to_le_bytes());
        &mut self.keys
    }

    fn word(&mut self, name: &str, text: &str) {
        Self::text(self.key(name, 8), text);
    }

    fn number(&mut self, name: &str, n: i64) {
        self.key(name, 4).extend((n as u32).to_le_bytes());
    }

    fn words(&mut self, name: &str, list: &[String]) {
        let into = self.key(name, 9);
        into.extend(8_u32.to_le_bytes());
        into.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|t| Self::text(into, t));
    }

    fn numbers(&mut self, name: &str, list: &[i32]) {
        let into = self.key(name, 9);
        into.extend(5_u32.to_le_bytes());
        into.extend((list.len() as u64).to_le_bytes());
        list.iter().for_each(|n| into.extend(n.to_le_bytes()));
    }

    fn tensor(&mut self, name: &str, t: &Tensor) {
        self.tensors += 1;
        Self::text(&mut self.infos, name);
        let mut shape = t.size();
        shape.reverse();
        self.infos.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|n| self.infos.extend(n.to_le_bytes()));
        self.infos.extend(0_u32.to_le_bytes());
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        let values = Vec::<f32>::try_from(t.contiguous().view(-1)).unwrap();
        values.iter().for_each(|x| self.data.extend(x.to_le_bytes()));
    }

    fn write(&self, path: &Path) {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(self.tensors.to_le_bytes());
        out.extend(self.count.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.infos);
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        std::fs::write(path, out).unwrap();
    }
}

/// llama.cpp's name of a Hugging Face tensor.
fn renamed(name: &str) -> String {
    let pairs = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    pairs.iter().fold(name.to_owned(), |n, (from, to)| n.replace(from, to))
}

/// Neighbours instead of halves, as llama.cpp's converter orders rows for Llama.
fn neighbours(w: &Tensor, heads: i64) -> Tensor {
    w.view([heads, 2, -1, w.size()[1]]).transpose(1, 2).reshape(w.size())
}

/// A random model as a file; `more` may add to it or spoil it.
fn written(dir: &Path, c: &ModelConfig, more: impl FnOnce(&mut File)) -> (Params, PathBuf) {
    let params = Params::random(c, 3, Kind::Float, Device::Cpu).unwrap();
    let arch = c.architecture.names().1;
    let mut f = File::default();
    f.word("general.architecture", arch);
    for (key, n) in [
        ("embedding_length", c.hidden),
        ("block_count", c.layers),
        ("feed_forward_length", c.ffn),
        ("attention.head_count", c.heads),
        ("attention.head_count_kv", c.kv_heads),
        ("attention.key_length", c.head_dim),
        ("context_length", c.context),
    ] {
        f.number(&format!("{arch}.{key}"), n);
    }
    let eps = (c.norm_eps as f32).to_le_bytes();
    f.key(&format!("{arch}.attention.layer_norm_rms_epsilon"), 6).extend(eps);
    let letters = ["a", "b", "c", "ab", "<|end|>"].map(str::to_owned);
    f.word("tokenizer.ggml.model", "gpt2");
    f.word("tokenizer.ggml.pre", "qwen2");
    f.words("tokenizer.ggml.tokens", &letters);
    f.numbers("tokenizer.ggml.token_type", &[1, 1, 1, 1, 3]);
    f.words("tokenizer.ggml.merges", &["a b".to_owned()]);
    f.number("tokenizer.ggml.eos_token_id", 4);
    for (part, shape, at) in params.specs.iter().flat_map(|s| s.places()) {
        let t = params.flat.narrow(0, at, shape.iter().product()).view(&shape[..]);
        let t = match c.architecture {
            Architecture::Llama if part.name.ends_with("q_proj.weight") => neighbours(&t, c.heads),
            Architecture::Llama if part.name.ends_with("k_proj.weight") => {
                neighbours(&t, c.kv_heads)
            }
            _ => t,
        };
        f.tensor(&renamed(&part.name), &t);
    }
    more(&mut f);
    let path = dir.join("model.gguf");
    f.write(&path);
    (params, path)
}

#[test]
fn a_model_is_read_as_it_was_written() {
    for (architecture, tied) in
        [(Architecture::Llama, true), (Architecture::Qwen2, false), (Architecture::Qwen3, false)]
    {
        let dir = tempfile::tempdir().unwrap();
        let c = ModelConfig { architecture, tied, ..common::tiny() };
        let (params, path) = written(dir.path(), &c, |_| {});
        let policy = Policy::open(&path, OPEN).unwrap();
        let wanted = ModelConfig { eos: vec![4], norm_eps: f64::from(c.norm_eps as f32), ..c };
        assert_eq!(policy.model.config, wanted);
        assert!(policy.model.params.flat.equal(&params.flat), "{architecture:?}");
        assert_eq!(policy.text.encode("abc<|end|>").unwrap(), [3, 2, 4]);
        assert_eq!(policy.text.decode(&[3, 2, 4]).unwrap(), "abc");
        // Saved, it is a folder like any other.
        let folder = dir.path().join("folder");
        policy::checkpoint::save(&policy, None, &folder, Kind::Float).unwrap();
        let again = Policy::open(&folder, OPEN).unwrap();
        assert!(again.model.params.flat.equal(&params.flat));
        assert_eq!(again.text.encode("abc<|end|>").unwrap(), [3, 2, 4]);
    }
}

#[track_caller]
fn refused(path: &Path, kind: &str, words: &[&str]) {
    let error = Policy::open(path, OPEN).err().expect("the file was accepted");
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(words.iter().all(|w| text.contains(w)), "{text} lacks one of {words:?}");
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let c = common::tiny();
    let (_, path) = written(dir.path(), &c, |_| {});
    let sound = std::fs::read(&path).unwrap();
    for cut in [3, 6, 20, 100, 400] {
        std::fs::write(&path, &sound[..cut]).unwrap();
        refused(&path, "gguf", &["model.gguf"]);
    }
    std::fs::write(&path, &sound[..sound.len() - 100]).unwrap();
    refused(&path, "gguf", &["too short for"]);
    let mut other = sound.clone();
    other[4] = 9;
    std::fs::write(&path, other).unwrap();
    refused(&path, "gguf", &["version", "9"]);
    refused(&dir.path().join("none.gguf"), "missing", &["none.gguf"]);
    // A length that no file can have asks for no memory.
    let mut forged = sound.clone();
    forged[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(&path, forged).unwrap();
    refused(&path, "gguf", &["header"]);

    let spoilt = |more: fn(&mut File)| drop(written(dir.path(), &c, more));
    spoilt(|f| f.word("general.architecture", "gemma"));
    refused(&path, "config", &["general.architecture", "gemma", "qwen3"]);
    spoilt(|f| f.word("tokenizer.ggml.model", "llama"));
    refused(&path, "config", &["tokenizer.ggml.model", "gpt2"]);
    spoilt(|f| f.word("tokenizer.ggml.pre", "starcoder"));
    refused(&path, "config", &["tokenizer.ggml.pre", "starcoder"]);
    spoilt(|f| f.word("llama.rope.scaling.type", "yarn"));
    refused(&path, "config", &["rope.scaling.type", "yarn"]);
    spoilt(|f| f.tensor("blk.0.ffn_extra.weight", &Tensor::from_slice(&[1_f32])));
    refused(&path, "unexpected_tensor", &["blk.0.ffn_extra.weight"]);
    spoilt(|f| f.tensor("rope_freqs.weight", &Tensor::ones([4], (Kind::Float, Device::Cpu))));
    refused(&path, "config", &["rope_freqs.weight", "Llama 3"]);
    // The last tensor's type, in its eight bytes before the offset, becomes Q6_K.
    spoilt(|f| {
        let at = f.infos.len() - 12;
        f.infos[at] = 14;
    });
    refused(&path, "dtype", &["GGUF type 14", "Q4_1"]);
}
