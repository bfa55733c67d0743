//! The tokenizer inside a GGUF file, as Hugging Face's files.

use serde_json::{Value as Json, json};

use super::Value;
use super::model::{Gguf, fault};
use crate::error::Result;

/// Qwen2's and Llama 3's words differ in how many digits go together.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Gguf {
    fn tokens(&self, key: &str) -> Result<&[Value]> {
        match self.file.keys.get(&format!("tokenizer.ggml.{key}")) {
            Some(Value::List(list)) => Ok(list),
            _ => Err(fault(&self.file, &format!("tokenizer.ggml.{key}"), "is missing")),
        }
    }

    pub(super) fn token(&self, key: &str) -> Option<u32> {
        match self.file.keys.get(&format!("tokenizer.ggml.{key}"))? {
            Value::Int(id) => u32::try_from(*id).ok(),
            _ => None,
        }
    }

    /// How words are cut before merging, by llama.cpp's name for it.
    fn cuts(&self, pre: &str) -> Result<Vec<Json>> {
        let bytes = |regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": regex})
        };
        let split = |digits: &str| {
            let pattern = json!({ "Regex": WORDS.replace("DIGITS", digits) });
            let split = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated",
                "invert": false});
            vec![split, bytes(false)]
        };
        let digits = json!({"type": "Digits", "individual_digits": true});
        Ok(match pre {
            "smollm" => vec![digits, bytes(true)],
            "qwen2" => split(""),
            "llama-bpe" => split("{1,3}"),
            "gpt-2" | "default" => vec![bytes(true)],
            other => {
                let problem =
                    format!("is `{other}`; known are smollm, qwen2, llama-bpe, gpt-2 and default");
                return Err(fault(&self.file, "tokenizer.ggml.pre", problem));
            }
        })
    }

    /// The tokenizer as tokenizer.json and tokenizer_config.json.
    ///
    /// # Errors
    /// One that is no byte-level BPE, or cuts words in a way that is not known.
    pub(crate) fn tokenizer(&self) -> Result<[(&'static str, String); 2]> {
        let text = |key: &str| match self.file.keys.get(key) {
            Some(Value::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        let model = text("tokenizer.ggml.model").unwrap_or_default();
        if model != "gpt2" {
            let problem = format!("is `{model}`; only gpt2 (byte-level BPE) is known");
            return Err(fault(&self.file, "tokenizer.ggml.model", problem));
        }
        let words: Vec<&str> = self.tokens("tokens")?.iter().map(word).collect();
        let pre = text("tokenizer.ggml.pre").unwrap_or("default");
        let cuts = self.cuts(pre)?;
        let merges: Vec<Json> = self
            .tokens("merges")?
            .iter()
            .filter_map(|m| word(m).split_once(' '))
            .map(|(a, b)| json!([a, b]))
            .collect();
        // 3 is a control token, 4 one that a user defined.
        let kinds = self.tokens("token_type").unwrap_or_default();
        let added: Vec<Json> = kinds
            .iter()
            .zip(&words)
            .enumerate()
            .filter(|(_, (kind, _))| matches!(kind, Value::Int(3 | 4)))
            .map(|(id, (kind, content))| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": *kind == Value::Int(3)})
            })
            .collect();
        let vocab: serde_json::Map<String, Json> =
            words.iter().enumerate().map(|(id, w)| ((*w).to_owned(), id.into())).collect();
        let normalizer = if pre == "qwen2" { json!({"type": "NFC"}) } else { Json::Null };
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": normalizer, "post_processor": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
                "byte_fallback": false, "ignore_merges": pre == "llama-bpe",
                "vocab": vocab, "merges": merges},
        });
        let name = |key: &str| self.token(key).and_then(|id| words.get(id as usize).copied());
        let config = json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": name("bos_token_id"), "eos_token": name("eos_token_id"),
            "pad_token": name("padding_token_id"),
            "chat_template": text("tokenizer.chat_template"),
            "clean_up_tokenization_spaces": false,
        });
        Ok([
            ("tokenizer.json", tokenizer.to_string()),
            ("tokenizer_config.json", config.to_string()),
        ])
    }
}

fn word(value: &Value) -> &str {
    match value {
        Value::Text(text) => text,
        _ => "",
    }
}
