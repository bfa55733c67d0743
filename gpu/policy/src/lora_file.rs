//! An adapter as PEFT stores it: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::config::read_object;
use crate::error::{Error, Result};
use crate::files;
use crate::fill::Fill;
use crate::lora::{Adapter, Lora, TARGETS, Target};
use crate::model::Model;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Writes the adapter of a model into the folder `dir`, made if absent; `read(first, count)` gives its
/// master's numbers.
///
/// # Errors
/// The system's, with the file.
pub fn save(
    adapter: &Adapter,
    dir: &Path,
    kind: Kind,
    read: impl Fn(i64, i64) -> Result<Tensor> + Copy,
) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
    let lora = &adapter.lora;
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": lora.r, "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout, "target_modules": lora.targets, "bias": "none",
        "fan_in_fan_out": false, "inference_mode": true,
    });
    let params = &adapter.params;
    let tensors = params.export("", kind, read);
    files::write(&dir.join(WEIGHTS), &tensors, "format", "pt")?;
    files::write_bytes(&dir.join(CONFIG), config.to_string().as_bytes())
}

/// Reads the adapter in the folder `dir` for `model`.
///
/// # Errors
/// A missing file or key, a variant that is not implemented, tensors that do not fit the model.
pub fn load(model: &Model, dir: &Path) -> Result<Adapter> {
    let (config, weights) = (dir.join(CONFIG), dir.join(WEIGHTS));
    for path in [&config, &weights] {
        if !path.is_file() {
            let fix = "give a folder that PEFT or this engine has saved an adapter in";
            return Err(Error::Missing { path: path.clone(), fix });
        }
    }
    let map = read_object(&config)?;
    let fault = |key: &str, problem: String| Error::Config {
        path: config.clone(),
        key: key.into(),
        problem,
    };
    let number = |key: &str, default: f64| match map.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(v) => v.as_f64().ok_or_else(|| fault(key, format!("is {v}; it must be a number"))),
    };
    let off = [
        ("use_dora", json!(false)),
        ("use_rslora", json!(false)),
        ("fan_in_fan_out", json!(false)),
        ("bias", json!("none")),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
        ("modules_to_save", Value::Null),
        ("layers_to_transform", Value::Null),
    ];
    for (key, wanted) in off {
        if let Some(found) = map.get(key).filter(|v| !v.is_null() && **v != wanted) {
            return Err(fault(key, format!("is {found}; only {wanted} is implemented")));
        }
    }
    let found: BTreeSet<&str> = match map.get("target_modules") {
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => return Err(fault("target_modules", "must be a list of names".into())),
    };
    let word = |t: Target| json!(t).as_str().unwrap_or_default().to_owned();
    let targets: Vec<Target> =
        TARGETS.into_iter().filter(|t| found.contains(word(*t).as_str())).collect();
    if targets.len() != found.len() {
        let known = TARGETS.map(word).join(", ");
        return Err(fault("target_modules", format!("known are {known}")));
    }
    let r = number("r", 8.0)? as i64;
    let alpha = number("lora_alpha", 8.0)?;
    let lora = Lora { r, alpha, dropout: number("lora_dropout", 0.0)?, targets };
    let adapter = Adapter::new(model, lora, 0)?;
    let fill = Fill::new(&adapter.params.specs);
    fill.check(&weights, files::shapes(&weights)?.into_iter())?;
    files::visit(&weights, |name, tensor| {
        fill.copy(&weights, name, &tensor, |at, v| adapter.params.write_master(at, v))
    })?;
    Ok(adapter)
}
