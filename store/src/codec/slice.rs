//! Reads bincode's form (little-endian, numbers of variable length) from a slice: what bincode's own
//! reader does, in half of the time. Long logs are read far more often than they are written.

use std::fmt::{self, Display};

use events::ids::Digest;
use serde::de::value::U32Deserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// The value that `bytes` begin with, and how many bytes it takes.
pub(super) fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<(T, usize), Bad> {
    let mut reader = Reader { rest: bytes };
    let value = T::deserialize(&mut reader)?;
    Ok((value, bytes.len() - reader.rest.len()))
}

/// Why bytes are no such value. One word long, since every step returns it.
#[derive(Debug)]
#[expect(
    clippy::box_collection,
    reason = "a text is three words, and every good value would be returned beside them"
)]
pub(super) struct Bad(Box<String>);

impl Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Bad {}

impl Error for Bad {
    #[cold]
    fn custom<T: Display>(what: T) -> Self {
        Self(Box::new(what.to_string()))
    }
}

/// What was not read yet.
struct Reader<'de> {
    rest: &'de [u8],
}

impl<'de> Reader<'de> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let Some((taken, rest)) = self.rest.split_first_chunk() else { return Err(ended()) };
        self.rest = rest;
        Ok(*taken)
    }

    #[inline]
    fn bytes(&mut self, length: usize) -> Result<&'de [u8], Bad> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else { return Err(ended()) };
        self.rest = rest;
        Ok(taken)
    }

    /// A number of at most `width` bytes: below 251 it is its own byte, else that says how many follow.
    #[inline]
    fn number(&mut self, width: u8) -> Result<u64, Bad> {
        let [first] = self.array()?;
        if first < 251 { Ok(first.into()) } else { self.long_number(first, width) }
    }

    fn long_number(&mut self, first: u8, width: u8) -> Result<u64, Bad> {
        match first {
            251 => Ok(u16::from_le_bytes(self.array()?).into()),
            252 if width >= 4 => Ok(u32::from_le_bytes(self.array()?).into()),
            253 if width >= 8 => Ok(u64::from_le_bytes(self.array()?)),
            _ => Err(Bad::custom(format_args!("{first} begins no number of {width} bytes"))),
        }
    }

    /// A number of things that take at least one byte each.
    #[inline]
    fn length(&mut self) -> Result<usize, Bad> {
        let length = self.number(8)?;
        let fits = usize::try_from(length).ok().filter(|length| *length <= self.rest.len());
        fits.ok_or_else(ended)
    }

    #[inline]
    fn text(&mut self) -> Result<&'de str, Bad> {
        let length = self.length()?;
        std::str::from_utf8(self.bytes(length)?).map_err(Bad::custom)
    }
}

#[cold]
fn ended() -> Bad {
    Bad::custom("it ends too early")
}

#[cold]
fn unused() -> Bad {
    Bad::custom("no record holds such a value")
}

macro_rules! values {
    ($($method:ident $visit:ident: |$reader:ident| $value:expr;)+) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Bad> {
            let $reader = self;
            visitor.$visit($value)
        }
    )+};
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Bad;

    values! {
        deserialize_u8 visit_u8: |reader| u8::from_le_bytes(reader.array()?);
        deserialize_u16 visit_u16: |reader| reader.number(2)? as u16;
        deserialize_u32 visit_u32: |reader| reader.number(4)? as u32;
        deserialize_u64 visit_u64: |reader| reader.number(8)?;
        deserialize_i32 visit_i32: |reader| {
            let number = reader.number(4)? as u32;
            (number >> 1) as i32 ^ -((number & 1) as i32)
        };
        deserialize_f32 visit_f32: |reader| f32::from_le_bytes(reader.array()?);
        deserialize_f64 visit_f64: |reader| f64::from_le_bytes(reader.array()?);
        deserialize_str visit_borrowed_str: |reader| reader.text()?;
        deserialize_string visit_borrowed_str: |reader| reader.text()?;
        deserialize_bytes visit_borrowed_bytes: |reader| {
            let length = reader.length()?;
            reader.bytes(length)?
        };
        deserialize_byte_buf visit_borrowed_bytes: |reader| {
            let length = reader.length()?;
            reader.bytes(length)?
        };
    }

    #[inline]
    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Bad> {
        match self.array()? {
            [0] => visitor.visit_bool(false),
            [1] => visitor.visit_bool(true),
            [other] => Err(Bad::custom(format_args!("{other} is neither yes nor no"))),
        }
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Bad> {
        match self.array()? {
            [0] => visitor.visit_none(),
            [1] => visitor.visit_some(self),
            [other] => Err(Bad::custom(format_args!("{other} is neither something nor nothing"))),
        }
    }

    #[inline]
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Bad> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Bad> {
        visitor.visit_newtype_struct(self)
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Bad> {
        let left = self.length()?;
        visitor.visit_seq(Items { reader: self, left })
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Bad> {
        visitor.visit_seq(Items { reader: self, left })
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Bad> {
        match name {
            // The same bytes, at once.
            Digest::NAME => visitor.visit_borrowed_bytes(self.bytes(left)?),
            _ => visitor.visit_seq(Items { reader: self, left }),
        }
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Bad> {
        visitor.visit_seq(Items { reader: self, left: fields.len() })
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Bad> {
        visitor.visit_enum(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Bad> {
        Err(unused())
    }

    forward_to_deserialize_any! { i8 i16 i64 i128 u128 char map unit_struct identifier ignored_any }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Values one after the other.
struct Items<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Bad;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Bad> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = Bad;
    type Variant = Self;

    #[inline]
    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Bad> {
        let number: U32Deserializer<Bad> = (self.number(4)? as u32).into_deserializer();
        Ok((seed.deserialize(number)?, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = Bad;

    #[inline]
    fn unit_variant(self) -> Result<(), Bad> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Bad> {
        seed.deserialize(self)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Bad> {
        visitor.visit_seq(Items { reader: self, left })
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Bad> {
        visitor.visit_seq(Items { reader: self, left: fields.len() })
    }
}
