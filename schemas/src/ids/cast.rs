//! Converts ids of one type to another type.

use super::{IdType, Ids, NOWHERE, SIGN_BIT, Values};

/// Returns the integers that a type holds; none for strings.
fn range_of(id_type: IdType) -> Option<std::ops::RangeInclusive<i128>> {
    Some(match id_type {
        IdType::Int32 => i128::from(i32::MIN)..=i128::from(i32::MAX),
        IdType::Int64 => i128::from(i64::MIN)..=i128::from(i64::MAX),
        IdType::UInt64 => 0..=i128::from(u64::MAX),
        IdType::Utf8 => return None,
    })
}

impl Ids {
    /// Converts the ids to another type.
    ///
    /// # Errors
    ///
    /// The position of the first id that the type cannot hold.
    pub fn cast(&self, id_type: IdType) -> std::result::Result<Ids, usize> {
        if id_type == self.id_type {
            return Ok(self.clone());
        }
        let Values::Keys(keys) = &self.values else {
            return self.cast_none();
        };
        let Some(range) = range_of(id_type) else {
            return self.cast_none();
        };
        if let Some(bad) = keys
            .iter()
            .position(|&key| !range.contains(&self.wide(key)))
        {
            return Err(bad);
        }
        let flip = if id_type.is_signed() { SIGN_BIT } else { 0 };
        let keys = keys
            .iter()
            .map(|&key| self.value_bits(key) ^ flip)
            .collect();
        Ok(Self::from_keys(id_type, keys))
    }

    /// Parses strings as integers of a type.
    ///
    /// # Errors
    ///
    /// The position of the first string that is no integer of the type.
    pub(crate) fn parse(&self, id_type: IdType) -> std::result::Result<Ids, usize> {
        let Some(range) = range_of(id_type) else {
            return self.cast_none();
        };
        let flip = if id_type.is_signed() { SIGN_BIT } else { 0 };
        let mut keys = Vec::with_capacity(self.len());
        for at in 0..self.len() {
            let number = self.as_str(at).and_then(|text| text.parse::<i128>().ok());
            let number = number.filter(|number| range.contains(number)).ok_or(at)?;
            let bits = i64::try_from(number).map(i64::cast_unsigned);
            keys.push(bits.or_else(|_| u64::try_from(number)).map_err(|_| at)? ^ flip);
        }
        Ok(Self::from_keys(id_type, keys))
    }

    /// Converts integer ids to another integer type, or parses strings; ids that the type cannot
    /// hold become [`NOWHERE`].
    pub(crate) fn cast_or_nowhere(&self, id_type: IdType) -> Ids {
        let mut ids = Ids::with_capacity(id_type, self.len());
        for at in 0..self.len() {
            let one = self.gather(&[u32::try_from(at).expect("a batch is small")]);
            let fitting = match one.id_type().is_integer() {
                true => one.cast(id_type),
                false => one.parse(id_type),
            };
            match fitting {
                Ok(id) => ids.extend_from(&id, 0..1),
                Err(_) => ids.push_key(NOWHERE),
            }
        }
        ids
    }

    fn cast_none(&self) -> std::result::Result<Ids, usize> {
        if self.is_empty() {
            Ok(Ids::new(IdType::Utf8))
        } else {
            Err(0)
        }
    }
}
