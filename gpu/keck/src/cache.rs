//! A bounded cache by content: the oldest entries make room.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Things that know their weight.
pub trait Weigh {
    /// Bytes held.
    fn bytes(&self) -> usize;
}

/// Maps content hashes to shared values.
#[derive(Debug)]
pub struct Cache<T> {
    limit: usize,
    held: usize,
    order: VecDeque<blake3::Hash>,
    values: HashMap<blake3::Hash, Arc<T>>,
}

impl<T: Weigh> Cache<T> {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, held: 0, order: VecDeque::new(), values: HashMap::new() }
    }

    /// The value of a key.
    pub fn get(&self, key: &blake3::Hash) -> Option<Arc<T>> {
        self.values.get(key).cloned()
    }

    /// Keeps a value, unless it alone is larger than the cache.
    pub fn put(&mut self, key: blake3::Hash, value: Arc<T>) {
        let size = value.bytes();
        if size > self.limit || self.values.contains_key(&key) {
            return;
        }
        while self.held + size > self.limit {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(gone) = self.values.remove(&oldest) {
                self.held -= gone.bytes();
            }
        }
        self.held += size;
        self.order.push_back(key);
        self.values.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weigh for Vec<u8> {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn oldest_makes_room() {
        let key = |n: u8| blake3::hash(&[n]);
        let mut cache = Cache::new(100);
        for n in 0..3 {
            cache.put(key(n), Arc::new(vec![n; 40]));
        }
        assert!(cache.get(&key(0)).is_none());
        assert!(cache.get(&key(1)).is_some() && cache.get(&key(2)).is_some());
        cache.put(key(9), Arc::new(vec![0; 101]));
        assert!(cache.get(&key(9)).is_none() && cache.held == 80);
    }
}
