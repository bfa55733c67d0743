//! Attention over packed sequences, and its backward pass from the saved output.
//!
//! `T` tokens of all segments stand one after the other: first the prompts that several answers
//! share (trunks), then sequences that stand alone, then the answers (branches), trunk after
//! trunk. Every segment is causal in itself; a branch's tokens also see all of their trunk. The two
//! parts are merged by their log-sum-exps, which is exact. The backward pass of softmax attention
//! needs only the merged output and log-sum-exp, so it runs over each part with those.

use tch::{Device, Kind, Tensor};

use crate::block::{self, Block};
use crate::dispatch::{self, Varlen};
use crate::error::Result;
use crate::exact::{self, Sight};
use crate::libtorch;

/// Starts of segments on the device, int32 `[n + 1]`, and the longest of them.
struct Starts {
    at: Tensor,
    longest: i64,
}

impl Starts {
    fn new(lengths: &[i64], device: Device) -> Result<Self> {
        let mut at = vec![0_i32];
        at.extend(lengths.iter().scan(0, |sum, n| {
            *sum += *n as i32;
            Some(*sum)
        }));
        let longest = lengths.iter().copied().max().unwrap_or(0);
        Ok(Starts { at: Tensor::f_from_slice(&at)?.f_to_device(device)?, longest })
    }
}

/// Who sees whom among packed tokens.
pub struct Spans {
    /// Lengths of all segments, in order.
    segments: Vec<i64>,
    /// Of each trunk: its length and the tokens of all of its branches together.
    groups: Vec<(i64, i64)>,
    /// Segments as rectangles, and trunks with their branches; only where there is no kernel for
    /// packed tokens.
    own: Vec<Block>,
    shared: Vec<Block>,
    starts: Starts,
    trunks: Starts,
    branches: Starts,
}

impl Spans {
    /// `segments` in order; `groups` holds for each trunk (they come first) its length and its
    /// branches' tokens (they come last).
    pub fn new(segments: Vec<i64>, groups: Vec<(i64, i64)>, device: Device) -> Result<Self> {
        let starts = Starts::new(&segments, device)?;
        let part = |f: fn(&(i64, i64)) -> i64| groups.iter().map(f).collect::<Vec<_>>();
        let trunks = Starts::new(&part(|g| g.0), device)?;
        let branches = Starts::new(&part(|g| g.1), device)?;
        let own = block::of_segments(&segments, device)?;
        let shared = block::of_groups(&groups, device)?;
        Ok(Spans { segments, groups, own, shared, starts, trunks, branches })
    }

    /// Tokens in all.
    pub fn tokens(&self) -> i64 {
        self.segments.iter().sum()
    }

    /// Pairs of a query and a key that it sees.
    pub fn pairs(&self) -> i64 {
        let own: i64 = self.segments.iter().map(|n| n * (n + 1) / 2).sum();
        own + self.groups.iter().map(|(trunk, branch)| trunk * branch).sum::<i64>()
    }

    fn causal(&self) -> Varlen<'_> {
        let s = &self.starts;
        let (longest_q, longest_k) = (s.longest, s.longest);
        Varlen { starts_q: &s.at, starts_k: &s.at, longest_q, longest_k, causal: true }
    }

    fn cross(&self) -> Varlen<'_> {
        Varlen {
            starts_q: &self.branches.at,
            starts_k: &self.trunks.at,
            longest_q: self.branches.longest,
            longest_k: self.trunks.longest,
            causal: false,
        }
    }

    /// Tokens of trunks and of branches, if there are any.
    fn shared(&self) -> Option<(i64, i64)> {
        let trunks = self.groups.iter().map(|g| g.0).sum();
        let branches = self.groups.iter().map(|g| g.1).sum();
        (branches > 0).then_some((trunks, branches))
    }

    /// What each token sees.
    fn sights(&self) -> Vec<Sight> {
        let mut all = Vec::with_capacity(self.tokens() as usize);
        let branches: i64 = self.groups.iter().map(|g| g.1).sum();
        let first_branch = (self.tokens() - branches) as usize;
        let mut groups = self.groups.iter();
        let (mut trunk, mut trunk_length, mut left, mut next_trunk) = (0, 0, 0, 0);
        for &length in &self.segments {
            let (start, length) = (all.len(), length as usize);
            if start >= first_branch {
                while left == 0
                    && let Some(group) = groups.next()
                {
                    (trunk, trunk_length, left) = (next_trunk, group.0 as usize, group.1 as usize);
                    next_trunk += trunk_length;
                }
                left -= length;
            }
            all.extend((1..=length).map(|own| Sight { start, own, trunk, trunk_length }));
        }
        all
    }

    fn blocks(&self, causal: bool) -> &[Block] {
        if causal { &self.own } else { &self.shared }
    }
}

/// What attention gave, and what its backward pass needs of it.
pub struct Attended {
    /// `[T, H, D]`.
    pub out: Tensor,
    /// `[H, T]`, float32 (float64 of float64): the log of the sum of exponentials.
    pub lse: Tensor,
    /// The state of a random source that is not used, which CUDA's backward pass asks for.
    rng: Option<(Tensor, Tensor)>,
}

/// Attention of `q` `[T, H, D]` to `k` and `v` `[T, K, D]`, scaled by `1/sqrt(D)`.
/// With `exact` a token's answer depends on what it sees alone, to the last bit: float32 on a CPU.
pub fn forward(q: &Tensor, k: &Tensor, v: &Tensor, spans: &Spans, exact: bool) -> Result<Attended> {
    if exact {
        let (out, lse) = exact::attend([q, k, v], &spans.sights())?;
        return Ok(Attended { out, lse, rng: None });
    }
    let attended = part(q, k, v, spans, true)?;
    let Some((trunks, branches)) = spans.shared() else { return Ok(attended) };
    let first = spans.tokens() - branches;
    let (keys, values) = (k.f_narrow(0, 0, trunks)?, v.f_narrow(0, 0, trunks)?);
    let cross = part(&q.f_narrow(0, first, branches)?, &keys, &values, spans, false)?;
    let mut lse = attended.lse.f_narrow(1, first, branches)?;
    let mut out = attended.out.f_narrow(0, first, branches)?;
    let whole = lse.f_logaddexp(&cross.lse)?;
    let share = |part: &Tensor| part.f_sub(&whole)?.f_exp()?.f_tr()?.f_unsqueeze(2);
    let merged = out.f_mul(&share(&lse)?)?.f_add(&cross.out.f_mul(&share(&cross.lse)?)?)?;
    out.f_copy_(&merged)?;
    lse.f_copy_(&whole)?;
    Ok(attended)
}

/// Gradients of `q`, `k`, `v` from that of the output, `[T, H, D]`.
pub fn backward(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    a: &Attended,
    spans: &Spans,
) -> Result<[Tensor; 3]> {
    let [mut dq, mut dk, mut dv] = part_back(grad, [q, k, v], a, spans, true)?;
    let Some((trunks, branches)) = spans.shared() else { return Ok([dq, dk, dv]) };
    let first = spans.tokens() - branches;
    let tail = |t: &Tensor, dim| t.f_narrow(dim, first, branches);
    let head = |t: &Tensor| t.f_narrow(0, 0, trunks);
    let rng = a.rng.as_ref().map(|(s, u)| (s.shallow_clone(), u.shallow_clone()));
    let part = Attended { out: tail(&a.out, 0)?, lse: tail(&a.lse, 1)?.f_contiguous()?, rng };
    let inputs = [&tail(q, 0)?, &head(k)?, &head(v)?];
    let [q2, k2, v2] = part_back(&tail(grad, 0)?, inputs, &part, spans, false)?;
    for (sum, more) in [(tail(&mut dq, 0)?, q2), (head(&mut dk)?, k2), (head(&mut dv)?, v2)] {
        let _ = { sum }.f_add_(&more)?;
    }
    Ok([dq, dk, dv])
}

/// CUDA has a kernel for packed 16-bit numbers; everything else goes rectangle by rectangle.
fn packed(q: &Tensor) -> Result<bool> {
    Ok(q.device() != Device::Cpu && matches!(q.f_kind()?, Kind::BFloat16 | Kind::Half))
}

fn part(q: &Tensor, k: &Tensor, v: &Tensor, spans: &Spans, causal: bool) -> Result<Attended> {
    if packed(q)? {
        let varlen = if causal { spans.causal() } else { spans.cross() };
        let [out, lse, rng, unused] = dispatch::flash(q, k, v, &varlen)?;
        return Ok(Attended { out, lse, rng: Some((rng, unused)) });
    }
    let (tokens, heads, _) = q.size3()?;
    let mut out = Tensor::f_empty(q.size(), (q.f_kind()?, q.device()))?;
    let sums = if q.f_kind()? == Kind::Double { Kind::Double } else { Kind::Float };
    let mut lse = Tensor::f_empty([tokens, heads], (sums, q.device()))?;
    for b in spans.blocks(causal) {
        let (part, sums) = one(&b.queries.cut(q)?, &b.keys.cut(k)?, &b.keys.cut(v)?, causal)?;
        b.queries.paste(&mut out, &part)?;
        b.queries.paste(&mut lse, &sums)?;
    }
    Ok(Attended { out, lse: lse.f_tr()?.f_contiguous()?, rng: None })
}

fn part_back(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    a: &Attended,
    spans: &Spans,
    causal: bool,
) -> Result<[Tensor; 3]> {
    if let Some((rng, unused)) = &a.rng {
        let s = if causal { spans.causal() } else { spans.cross() };
        let back = || {
            Tensor::f_internal_flash_attention_backward(
                grad,
                q,
                k,
                v,
                &a.out,
                &a.lse,
                s.starts_q,
                s.starts_k,
                s.longest_q,
                s.longest_k,
                0.0,
                causal,
                rng,
                unused,
                None,
                None,
                None,
            )
        };
        let (dq, dk, dv) = libtorch::strictly(back)?;
        return Ok([dq, dk, dv]);
    }
    let like = |t: &Tensor| Tensor::f_empty(t.size(), (t.f_kind()?, t.device()));
    let (mut dq, mut dk, mut dv) = (like(q)?, like(k)?, like(v)?);
    let lse = a.lse.f_tr()?;
    for b in spans.blocks(causal) {
        let inputs = [&b.queries.cut(q)?, &b.keys.cut(k)?, &b.keys.cut(v)?];
        let (grad, out, lse) = (b.queries.cut(grad)?, b.queries.cut(&a.out)?, b.queries.cut(&lse)?);
        let [q, k, v] = one_back(&grad, inputs, &out, &lse, causal)?;
        b.queries.paste(&mut dq, &q)?;
        b.keys.paste(&mut dk, &k)?;
        b.keys.paste(&mut dv, &v)?;
    }
    Ok([dq, dk, dv])
}

/// A rectangle: `[S, H, n, D]` to `[S, K, m, D]`; output and log-sum-exp `[S, H, n]`.
fn one(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Result<(Tensor, Tensor)> {
    if q.device() == Device::Cpu {
        return Ok(Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu::<&Tensor>(
            q, k, v, 0.0, causal, None, None,
        )?);
    }
    let scores = scores(q, k, causal)?;
    let lse = scores.f_logsumexp([-1], true)?;
    let out = scores.f_sub(&lse)?.f_exp()?.f_matmul(&spread(v, q)?)?;
    Ok((out, lse.f_squeeze_dim(3)?))
}

fn one_back(
    grad: &Tensor,
    [q, k, v]: [&Tensor; 3],
    out: &Tensor,
    lse: &Tensor,
    causal: bool,
) -> Result<[Tensor; 3]> {
    if q.device() == Device::Cpu {
        let (dq, dk, dv) = Tensor::f_internal_scaled_dot_product_flash_attention_for_cpu_backward::<
            &Tensor,
        >(grad, q, k, v, out, lse, 0.0, causal, None, None)?;
        return Ok([dq, dk, dv]);
    }
    let p = scores(q, k, causal)?.f_sub(&lse.f_unsqueeze(3)?)?.f_exp()?;
    let delta = grad.f_mul(out)?.f_sum_dim_intlist([-1_i64].as_slice(), true, None)?;
    let dp = grad.f_matmul(&spread(v, q)?.f_transpose(2, 3)?)?.f_sub(&delta)?;
    let ds = p.f_mul(&dp)?.f_mul_scalar(scale(q))?;
    let dq = ds.f_matmul(&spread(k, q)?)?;
    let dk = gather(&ds.f_transpose(2, 3)?.f_matmul(q)?, k)?;
    let dv = gather(&p.f_transpose(2, 3)?.f_matmul(grad)?, v)?;
    Ok([dq, dk, dv])
}

fn scale(q: &Tensor) -> f64 {
    1.0 / (q.size()[3] as f64).sqrt()
}

fn scores(q: &Tensor, k: &Tensor, causal: bool) -> Result<Tensor> {
    let scores = q.f_matmul(&spread(k, q)?.f_transpose(2, 3)?)?.f_mul_scalar(scale(q))?;
    if !causal {
        return Ok(scores);
    }
    let later = scores.f_ones_like()?.f_triu(1)?.f_to_kind(Kind::Bool)?;
    Ok(scores.f_masked_fill(&later, f64::NEG_INFINITY)?)
}

/// Each key head as often as query heads share it.
fn spread(k: &Tensor, q: &Tensor) -> Result<Tensor> {
    Ok(k.f_repeat_interleave_self_int(q.size()[1] / k.size()[1], 1, None)?)
}

/// The sum over the query heads that share a key head.
fn gather(grad: &Tensor, k: &Tensor) -> Result<Tensor> {
    let (rows, heads, length, width) = grad.size4()?;
    let kv = k.size()[1];
    let apart = grad.f_view([rows, kv, heads / kv, length, width])?;
    Ok(apart.f_sum_dim_intlist([2_i64].as_slice(), false, None)?)
}
