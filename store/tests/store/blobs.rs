use std::fs;

use events::ids::Digest;
use events::log::{Blobs, LogError};
use store::BlobDir;
use tempfile::TempDir;

use super::flip;

fn open() -> (TempDir, BlobDir) {
    let folder = TempDir::new().unwrap();
    let blobs = BlobDir::open(folder.path()).unwrap();
    (folder, blobs)
}

#[test]
fn every_flipped_byte_is_damage_and_a_new_put_heals_it() {
    let (_folder, blobs) = open();
    let packed = b"all the same ".repeat(20);
    let raw: Vec<u8> = (0..4u8).flat_map(|i| Digest::of(&[i]).0).collect();
    for content in [packed, raw] {
        let id = blobs.put(&content).unwrap();
        for at in 0..fs::metadata(blobs.path(id)).unwrap().len() as usize {
            flip(&blobs.path(id), at);
            let error = blobs.get(id).unwrap_err();
            assert!(matches!(error, LogError::Blob { what: "is damaged", .. }), "{at}: {error}");
            assert_eq!(blobs.verify_all([id]).len(), 1);
            assert_eq!(blobs.put(&content).unwrap(), id);
            assert_eq!(blobs.get(id).unwrap(), content);
        }
        fs::write(blobs.path(id), b"").unwrap();
        assert!(blobs.get(id).is_err());
        fs::remove_file(blobs.path(id)).unwrap();
        let wrong = blobs.verify_all([id]);
        assert!(matches!(wrong[..], [LogError::Blob { what: "is missing", .. }]));
    }
}

#[test]
fn text_is_compressed_and_noise_is_not() {
    let (_folder, blobs) = open();
    let id = blobs.put(&b"text ".repeat(1000)).unwrap();
    assert!(fs::metadata(blobs.path(id)).unwrap().len() < 200);
    let noise: Vec<u8> = (0..999u32).flat_map(|i| Digest::of(&i.to_le_bytes()).0).collect();
    let id = blobs.put(&noise).unwrap();
    assert_eq!(fs::metadata(blobs.path(id)).unwrap().len(), noise.len() as u64 + 1);
}

#[test]
fn files_go_in_and_out() {
    let (folder, blobs) = open();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for length in [0, 5, 9 << 20] {
        let content: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        fs::write(&from, &content).unwrap();
        let id = blobs.put_file(&from).unwrap();
        assert_eq!(id, Digest::of(&content));
        assert_eq!(blobs.put_file(&from).unwrap(), id);
        blobs.export_to(id, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), content);
        assert_eq!(blobs.get(id).unwrap(), content);
        flip(&blobs.path(id), fs::metadata(blobs.path(id)).unwrap().len() as usize - 1);
        assert!(blobs.export_to(id, &to).is_err());
        assert_eq!(fs::read(&to).unwrap(), content, "a damaged blob replaces nothing");
        fs::remove_file(&to).unwrap();
    }
    let left: Vec<_> = fs::read_dir(folder.path().join("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(blobs.put_file(&folder.path().join("nowhere")).is_err());
}

#[test]
fn only_what_dead_writers_left_is_swept() {
    let (folder, _blobs) = open();
    let (dead, alive) = (folder.path().join("tmp/1-1"), folder.path().join("tmp/1-2"));
    fs::write(&dead, b"half").unwrap();
    let file = fs::File::create(&alive).unwrap();
    file.lock().unwrap();
    BlobDir::open(folder.path()).unwrap();
    assert!(!dead.exists() && alive.exists());
}
