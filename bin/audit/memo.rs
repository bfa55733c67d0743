//! What several threads need of blobs, worked out once and kept for a while.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use events::ids::BlobId;

/// Values by blob. The oldest go when those that are kept weigh more than the limit.
pub struct Memo<T> {
    limit: usize,
    weigh: fn(&T) -> usize,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    cells: HashMap<BlobId, Arc<OnceLock<T>>>,
    /// What is made, oldest first, and what it weighs.
    order: VecDeque<(BlobId, usize)>,
    weight: usize,
}

impl<T: Clone> Memo<T> {
    /// Nothing yet. `weigh` says what a value weighs, beside a constant for its place.
    pub fn new(limit: usize, weigh: fn(&T) -> usize) -> Self {
        let held = Held { cells: HashMap::new(), order: VecDeque::new(), weight: 0 };
        Self { limit, weigh, held: Mutex::new(held) }
    }

    fn held(&self) -> MutexGuard<'_, Held<T>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of `id`. Whoever asks while another thread makes it waits for that one.
    pub fn get(&self, id: BlobId, make: impl FnOnce() -> T) -> T {
        let cell = self.held().cells.entry(id).or_default().clone();
        let mut weight = None;
        let value = cell.get_or_init(|| {
            let value = make();
            weight = Some((self.weigh)(&value) + size_of::<(T, BlobId)>());
            value
        });
        if let Some(weight) = weight {
            let mut held = self.held();
            held.order.push_back((id, weight));
            held.weight += weight;
            while held.weight > self.limit {
                let Some((oldest, weight)) = held.order.pop_front() else { break };
                held.cells.remove(&oldest);
                held.weight -= weight;
            }
        }
        value.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use events::ids::Digest;

    #[test]
    fn what_is_kept_is_made_once_and_the_oldest_goes() {
        let memo: Memo<Vec<u8>> = Memo::new(1000, Vec::len);
        let id = |n: u8| Digest::of(&[n]);
        for _ in 0..2 {
            assert_eq!(memo.get(id(1), || vec![1; 300]), vec![1; 300]);
        }
        assert_eq!(memo.get(id(1), || panic!("made twice")), vec![1; 300]);
        memo.get(id(2), || vec![2; 300]);
        memo.get(id(3), || vec![3; 300]);
        assert_eq!(memo.get(id(1), || vec![4; 300]), vec![4; 300], "it was kept too long");
        memo.get(id(5), || vec![5; 5000]);
        assert!(memo.held().weight <= 1000 && memo.held().cells.is_empty());
    }

    #[test]
    fn threads_wait_for_each_other() {
        let memo: Memo<Arc<u8>> = Memo::new(10_000, |_| 1);
        let made: Vec<Arc<u8>> = std::thread::scope(|scope| {
            let ask = || memo.get(Digest::of(b"x"), || Arc::new(7));
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|value| Arc::ptr_eq(value, &made[0])));
    }
}
