//! What the engine saves, transformers loads, shards included.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use policy::config::{Architecture, ModelConfig};
use policy::files::{self, Stored};
use policy::{Open, Policy, checkpoint};
use tch::{Device, Kind, Tensor};

#[test]
fn transformers_loads_what_is_saved_in_one_file_and_in_shards() {
    let open = Open { device: Device::Cpu, kind: None, trainable: false };
    for (architecture, tied, limit) in [
        (Architecture::Qwen2, true, u64::MAX),
        (Architecture::Llama, false, 20_000),
        (Architecture::Qwen3, false, 30_000),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (tokenizer, folder) = (dir.path().join("tokenizer"), dir.path().join("model"));
        policy::bpe::train(["a b".to_owned()].into_iter(), 260, &tokenizer).unwrap();
        let shape = |vocab| ModelConfig { architecture, tied, vocab, ..common::tiny() };
        let policy = Policy::random(&tokenizer, shape, 1, open).unwrap();
        checkpoint::save(&policy, None, &folder, Kind::Float).unwrap();
        let params = &policy.model.params;
        let tensors = params.export("", Kind::Float, |at, n| params.read_master(at, n));
        let shards = tensors.iter().map(Stored::size).sum::<u64>() > limit;
        files::write_weights(&folder, tensors, limit).unwrap();
        let single = folder.join("model.safetensors");
        assert_eq!(single.is_file(), !shards, "one or the other, never both");
        let index = folder.join("model.safetensors.index.json");
        assert_eq!(index.is_file(), shards);

        let again = Policy::open(&folder, open).unwrap();
        assert!(again.model.params.flat.equal(&params.flat));
        let ids = Tensor::randint(200, [2, 17], (Kind::Int64, Device::Cpu));
        let stored = Stored::new("ids".into(), ids.size(), Kind::Float, || Ok(ids.shallow_clone()));
        files::write(&folder.join("ids.safetensors"), &[stored], "format", "pt").unwrap();
        common::run_python("saved.py", &[folder.to_str().unwrap()]);
        let mut wanted = Tensor::new();
        files::visit(&folder.join("logits.safetensors"), |_, t| {
            wanted = t;
            Ok(())
        })
        .unwrap();
        let hidden = tch::no_grad(|| again.model.hidden(&ids).unwrap());
        let logits = again.model.logits(&hidden.reshape([-1, shape(1).hidden])).unwrap();
        let difference = common::relative(&logits.view_as(&wanted), &wanted);
        assert!(difference < 1e-5, "{architecture:?}: logits differ by {difference}");
        if shards {
            // A shard that is gone is named, and nothing is loaded.
            let shard = "model-00002-of-";
            let found = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path());
            let found = found.into_iter().find(|p| p.to_str().unwrap().contains(shard)).unwrap();
            std::fs::remove_file(found).unwrap();
            let error = Policy::open(&folder, open).err().unwrap();
            assert!(error.kind() == "missing" && error.to_string().contains(shard), "{error}");
            checkpoint::save(&policy, None, &folder, Kind::Float).unwrap();
            assert!(!index.is_file(), "the index of shards that no longer count is gone");
            Policy::open(&folder, open).unwrap();
        }
    }
}
