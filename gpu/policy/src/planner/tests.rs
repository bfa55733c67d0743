//! Plans against a table worked out by hand.

use super::*;
use crate::shapes;

const GB: f64 = 1e9;
const H200: u64 = 143_771 << 20;
const HOST: u64 = 100_000_000_000;

fn qwen() -> ModelConfig {
    shapes::named("qwen2-7b").unwrap()
}

fn resident(scheme: Scheme, gpus: u64) -> f64 {
    scheme.resident(7_615_616_512, gpus).iter().sum::<u64>() as f64 / GB
}

#[test]
fn the_shapes_have_the_known_numbers_of_parameters() {
    assert_eq!(qwen().parameters(), 7_615_616_512);
    assert_eq!(shapes::named("smollm2-135m").unwrap().parameters(), 134_515_008);
    assert_eq!(lora_parameters(&qwen(), 16), 40_370_176);
    assert_eq!(cache_bytes(&qwen()), 57_344);
    assert!(shapes::named("qwen2-8b").unwrap_err().to_string().contains("qwen2-7b"));
}

/// Bytes of all schemes of a table worked out by hand for 7.6 billion parameters.
#[test]
fn schemes_take_what_the_table_says() {
    let paper = Scheme { master: 4, moments: 8, gradients: 4, reference: 2, zero: Zero::None };
    let bf16 = Scheme { gradients: 2, ..paper };
    let (one, two) = (Zero::One, Zero::Two);
    for (scheme, gpus, gb) in [
        (paper, 1, 152.3),
        (bf16, 1, 137.1),
        (Scheme { reference: 0, ..bf16 }, 1, 121.9),
        (Scheme { reference: 0, moments: 4, ..bf16 }, 1, 91.4),
        (Scheme { reference: 0, master: 2, ..bf16 }, 1, 106.6),
        (Scheme { zero: one, ..paper }, 2, 106.6),
        (Scheme { zero: one, reference: 0, ..bf16 }, 4, 53.3),
        (Scheme { zero: one, ..bf16 }, 4, 68.5),
        (Scheme { zero: two, ..paper }, 4, 49.5),
        (Scheme { zero: one, ..bf16 }, 8, 57.1),
        (Scheme { zero: two, ..paper }, 8, 32.4),
        (Scheme { zero: Zero::Three, ..paper }, 2, 76.2),
        (Scheme { zero: Zero::Three, ..paper }, 8, 19.0),
        // The engine's own on one GPU: float32 gradients for the price of bfloat16 ones.
        (Scheme::engine(1, false), 1, 121.9),
    ] {
        let found = resident(scheme, gpus);
        assert!((found - gb).abs() < 0.06, "{scheme:?} on {gpus}: {found} is not {gb}");
    }
}

#[test]
fn one_gpu_updates_a_7b_model_with_the_reference_in_the_host() {
    let machine = Machine { gpus: 1, memory: H200, host: HOST };
    let update = |tokens| Job { phase: Phase::Update { tokens }, reference: true, lora: None };
    // The longest prompt and answer of the paper, in one pack.
    for tokens in [16_384, 24_576] {
        let p = plan(&qwen(), &machine, &update(tokens)).unwrap();
        let reference = p.parts.iter().find(|p| p.name == "reference").unwrap();
        assert_eq!(reference.place, Place::Host, "{tokens}");
        assert!(p.peak <= H200 && p.peak + p.left == H200);
        assert_eq!(p.peak, RESERVE + of(&p.parts, |place| place != Place::Host));
    }
    let small = plan(&qwen(), &machine, &update(16_384)).unwrap().kept_layers.unwrap();
    let large = plan(&qwen(), &machine, &update(24_576)).unwrap().kept_layers.unwrap();
    assert!(small[0] == 28 && small[1] > large[1], "{small:?} {large:?}");
    // With less of the host's memory than the reference there is no way.
    let poor = Machine { host: 10_000_000_000, ..machine };
    let error = plan(&qwen(), &poor, &update(32_768)).unwrap_err().to_string();
    assert!(error.contains("host"), "{error}");
    let p = plan(&qwen(), &poor, &update(8192)).unwrap();
    assert!(p.parts.iter().all(|p| p.place == Place::Gpu), "smaller packs leave it room");
}

#[test]
fn what_cannot_fit_is_refused_with_what_would() {
    let job = Job { phase: Phase::Update { tokens: 16_384 }, reference: true, lora: None };
    let card = 85_500_000_000;
    let one = Machine { gpus: 1, memory: card, host: HOST };
    let error = plan(&qwen(), &one, &job).unwrap_err().to_string();
    for word in ["moments 60.9 GB", "3 such GPUs", "adapter of rank 16"] {
        assert!(error.contains(word), "{error} lacks {word}");
    }
    for (gpus, sharded) in [(3, 25.4), (4, 19.0), (8, 9.5)] {
        let p = plan(&qwen(), &Machine { gpus, ..one }, &job).unwrap();
        let bytes = of(&p.parts, |place| place == Place::Sharded) as f64 / GB;
        assert!((bytes - sharded).abs() < 0.1, "{gpus}: {bytes}");
    }
    let small = plan(&qwen(), &one, &Job { lora: Some(16), ..job }).unwrap();
    assert!(small.parts.iter().all(|p| p.name != "reference"), "the base is the reference");
}

#[test]
fn a_rank_has_what_the_plan_counts() {
    use crate::optim::AdamW;
    use crate::params::Params;
    let small = ModelConfig { vocab: 700, layers: 3, ..shapes::named("smollm2-135m").unwrap() };
    for world in [1, 2, 3, 8] {
        for rank in 0..world {
            let device = tch::Device::Cpu;
            let mut params = Params::noise(&small, Kind::BFloat16, device, true).unwrap();
            params.divide(rank, world).unwrap();
            let found = params.bytes() + AdamW::new(&params).unwrap().bytes();
            let numbers = params.flat.numel() as u64;
            let scheme = Scheme::engine(world as u64, false);
            let planned: u64 = scheme.resident(numbers, world as u64).iter().sum();
            // Parts are rounded up to 64 numbers, the gradient to equal parts; the last part is short.
            let rounding = 64 * world as u64 * 16;
            assert!(found.abs_diff(planned) <= rounding, "{rank} of {world}: {found}, {planned}");
        }
    }
}

#[test]
fn a_rollout_has_the_gradients_room_for_keys_and_values() {
    let machine = Machine { gpus: 1, memory: H200, host: HOST };
    let job = Job { phase: Phase::Rollout, reference: false, lora: None };
    let p = plan(&qwen(), &machine, &job).unwrap();
    let tokens = p.cached_tokens.unwrap();
    // 150.75 - 91.4 - 2.5 GB at 57,344 bytes a token.
    assert!((980_000..1_000_000).contains(&tokens), "{tokens}");
}
