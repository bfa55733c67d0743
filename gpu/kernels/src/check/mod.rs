//! Every kernel against [`crate::reference`] on a device: random shapes, odd sizes, outputs and
//! unused parts of the cache poisoned with NaN, and a guard behind each output.

mod attention;
mod elementwise;
mod sampling;
mod training;

use half::bf16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{Error, Result};
use crate::machine::{Machine, Memory};

/// What a kernel's check found.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The kernel.
    pub kernel: &'static str,
    /// Cases compared.
    pub cases: usize,
    /// The largest `||found - wanted|| / ||wanted||` of a case.
    pub worst: f64,
}

/// Checks all kernels on a machine with inputs from `seed`.
///
/// # Errors
/// The first kernel that differs, with the shape; a fault of the device.
pub fn all(gpu: &dyn Machine, seed: u64) -> Result<Vec<Report>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut reports = elementwise::check(gpu, &mut rng)?;
    reports.extend(attention::check(gpu, &mut rng)?);
    reports.extend(sampling::check(gpu, &mut rng)?);
    reports.extend(training::check(gpu, &mut rng)?);
    Ok(reports)
}

/// Bytes behind each output that must stay as they are.
const GUARD: usize = 64;

/// `count` random numbers, about normal, as bfloat16 holds them.
fn random(rng: &mut ChaCha8Rng, count: usize, scale: f32) -> Vec<bf16> {
    let one = |rng: &mut ChaCha8Rng| {
        let sum: f32 = (0..4).map(|_| rng.random::<f32>() - 0.5).sum();
        bf16::from_f32(sum * 1.7 * scale)
    };
    (0..count).map(|_| one(rng)).collect()
}

/// New memory with `values`.
fn upload<T: Copy>(gpu: &dyn Machine, values: &[T]) -> Result<Memory> {
    let memory = gpu.alloc(size_of_val(values))?;
    // SAFETY: numbers without padding, as bytes.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
    gpu.write(&memory, bytes)?;
    Ok(memory)
}

/// The first `count` numbers.
fn download<T: Copy + Default>(gpu: &dyn Machine, memory: &Memory, count: usize) -> Result<Vec<T>> {
    let mut values = vec![T::default(); count];
    let size = size_of_val(&values[..]);
    // SAFETY: numbers that any bytes are good for.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size) };
    gpu.read(memory, bytes)?;
    Ok(values)
}

fn doubles(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|v| v.to_f64()).collect()
}

/// Memory for `bytes` of output and a guard, all of it NaN.
fn poisoned(gpu: &dyn Machine, bytes: usize) -> Result<Memory> {
    let memory = gpu.alloc(bytes + GUARD)?;
    gpu.fill(&memory, 0xff)?;
    Ok(memory)
}

/// Compares a bfloat16 output with what it should be, and looks after the guard.
fn compare(
    gpu: &dyn Machine,
    kernel: &'static str,
    shape: &str,
    found: &Memory,
    wanted: &[f64],
    limit: f64,
) -> Result<f64> {
    let bits: Vec<u16> = download(gpu, found, wanted.len() + GUARD / 2)?;
    let (bits, guard) = bits.split_at(wanted.len());
    let wrong = |problem: String| Error::Wrong { kernel, problem: format!("{shape}: {problem}") };
    if guard.iter().any(|&b| b != 0xffff) {
        return Err(wrong("wrote behind its output".into()));
    }
    let (mut apart, mut size) = (0.0, 0.0);
    for (i, (&b, &w)) in bits.iter().zip(wanted).enumerate() {
        let value = bf16::from_bits(b).to_f64();
        if !value.is_finite() {
            return Err(wrong(format!("element {i} is {value}, not {w}")));
        }
        apart += (value - w) * (value - w);
        size += w * w;
    }
    let relative = (apart / size.max(1e-30)).sqrt();
    match relative <= limit {
        true => Ok(relative),
        false => Err(wrong(format!("off by {relative:.2e}, allowed {limit:.0e}"))),
    }
}
