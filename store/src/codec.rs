//! The one place that knows how a record becomes bytes: its schema as a little-endian `u16`, then
//! the record in bincode. The schema comes first, so that it can be read where the rest cannot.

mod slice;
#[cfg(test)]
mod tests;
mod v1;

use bincode::config::standard;
use events::event::{Recorded, SCHEMA};

const SCHEMA_BYTES: usize = 2;
/// Why stored bytes are not a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// A newer program wrote them, in this schema.
    Newer(u16),
    /// They are not what was written.
    Damaged(String),
}

/// The stored bytes of `record`, which must have the schema of this program.
pub fn encode(record: &Recorded) -> Result<Vec<u8>, CodecError> {
    let mut bytes = Vec::with_capacity(512);
    encode_into(record, &mut bytes)?;
    Ok(bytes)
}

/// Appends the stored bytes of `record` to `bytes`.
pub(crate) fn encode_into(record: &Recorded, bytes: &mut Vec<u8>) -> Result<(), CodecError> {
    if record.schema != SCHEMA {
        return Err(CodecError::Damaged(format!("schema {} is not written", record.schema)));
    }
    bytes.extend_from_slice(&SCHEMA.to_le_bytes());
    bincode::serde::encode_into_std_write(record, bytes, standard())
        .map_err(|e| CodecError::Damaged(e.to_string()))?;
    Ok(())
}

/// The record in `bytes`, which must hold it and nothing else.
pub fn decode(bytes: &[u8]) -> Result<Recorded, CodecError> {
    let Some((schema, body)) = bytes.split_first_chunk::<SCHEMA_BYTES>() else {
        return Err(CodecError::Damaged("too short for a schema".into()));
    };
    match u16::from_le_bytes(*schema) {
        SCHEMA => whole(slice::decode(body), body, SCHEMA),
        newer if newer > SCHEMA => Err(CodecError::Newer(newer)),
        // Only variants were added since.
        2 => whole(slice::decode(body), body, 2),
        v1::SCHEMA => match v1::measured(body) {
            Ok(None) => whole(slice::decode(body), body, v1::SCHEMA),
            Ok(Some(decoded)) => whole(Ok(decoded), body, v1::SCHEMA),
            Err(error) => whole(Err(error), body, v1::SCHEMA),
        },
        never => Err(CodecError::Damaged(format!("schema {never} never existed"))),
    }
}

/// A decoded record, which must use all bytes and say of itself what its first bytes say.
fn whole(
    decoded: Result<(Recorded, usize), slice::Bad>,
    body: &[u8],
    schema: u16,
) -> Result<Recorded, CodecError> {
    let (record, used) = decoded.map_err(|e| CodecError::Damaged(e.to_string()))?;
    if used != body.len() {
        let spare = body.len() - used;
        return Err(CodecError::Damaged(format!("{spare} bytes after the record's end")));
    }
    if record.schema != schema {
        let inside = record.schema;
        return Err(CodecError::Damaged(format!("schema {schema} outside, {inside} inside")));
    }
    Ok(record)
}
