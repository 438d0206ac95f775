//! The block I/O class file as written.
//!
//! Main type: [`Config`]. Quantities and device names stay texts here; [`super::resolve`]
//! interprets them.

use std::collections::BTreeMap;

use objects::YamlError;

use crate::strict_yaml::{At, read};

/// A whole file: the items of each class in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub classes: BTreeMap<String, Vec<Item>>,
}

/// Parameters for some devices, or for the whole class. An empty text is an absent parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Names and globs of devices; `None` stands for the whole class.
    pub devices: Option<Vec<String>>,
    pub weight: String,
    pub throttle_read_bps: String,
    pub throttle_write_bps: String,
    pub throttle_read_iops: String,
    pub throttle_write_iops: String,
}

impl Config {
    /// Reads a file; `None` if it is empty.
    pub fn parse(text: &str) -> Result<Option<Config>, YamlError> {
        Config::decode(&At::root(&read(text)?))
    }

    /// Reads a file that is a value in another; `None` if it is null.
    pub fn decode(at: &At<'_>) -> Result<Option<Config>, YamlError> {
        if at.is_null() {
            return Ok(None);
        }
        let mut config = Config::default();
        for (_, classes) in at.fields(&["Classes"])? {
            for (name, items) in classes.entries()? {
                let items = items.items()?.iter().map(item).collect::<Result<_, _>>()?;
                config.classes.insert(name.to_owned(), items);
            }
        }
        Ok(Some(config))
    }
}

fn item(at: &At<'_>) -> Result<Item, YamlError> {
    let mut item = Item::default();
    for (name, field) in at.fields(&[
        "Devices",
        "ThrottleReadBps",
        "ThrottleWriteBps",
        "ThrottleReadIOPS",
        "ThrottleWriteIOPS",
        "Weight",
    ])? {
        match name {
            "Devices" if field.is_null() => {}
            "Devices" => {
                let devices = field.items()?.iter().map(At::text).collect::<Result<_, _>>()?;
                item.devices = Some(devices);
            }
            "ThrottleReadBps" => item.throttle_read_bps = field.text()?,
            "ThrottleWriteBps" => item.throttle_write_bps = field.text()?,
            "ThrottleReadIOPS" => item.throttle_read_iops = field.text()?,
            "ThrottleWriteIOPS" => item.throttle_write_iops = field.text()?,
            _ => item.weight = field.text()?,
        }
    }
    Ok(item)
}
