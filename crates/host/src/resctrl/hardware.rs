//! Reads what a machine's resctrl offers into [`classes::hardware::Resctrl`], with a list of
//! anomalies.
//!
//! The texts are interpreted by the crate `classes`; the numbers that limit groups are also read one
//! by one here, so that an error can name them on a machine that `classes` rejects.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use classes::hardware::resctrl::{DetectError, InfoTexts, Mount, detect};

use super::groups::directories;
use super::{Resctrl, ResctrlError, failed, is_gone};
use crate::Anomaly;

impl Resctrl {
    /// Returns the controls of the machine, and anomalies for those that could not be read and are
    /// left out.
    pub fn hardware(&self) -> Result<(classes::hardware::Resctrl, Vec<Anomaly>), DetectError> {
        let (mut texts, mut anomalies) = self.info_texts();
        let options = self.options.iter().cloned().collect();
        let mount = Mount { path: self.root.display().to_string(), options };
        loop {
            let error = match classes::hardware::Resctrl::detect(&mount, &texts) {
                Ok(hardware) => return Ok((hardware, anomalies)),
                Err(error) => error,
            };
            let (Some(info), Some(unusable)) = (&mut texts.info, unusable(&error)) else {
                return Err(error);
            };
            let before = info.len();
            info.retain(|control, _| !unusable(control));
            if info.len() == before {
                return Err(error);
            }
            let path = self.root.join("info").display().to_string();
            anomalies.push(Anomaly::Unreadable { path, reason: error.to_string() });
        }
    }

    /// Returns the texts that describe the controls, and anomalies for unreadable files.
    fn info_texts(&self) -> (InfoTexts, Vec<Anomaly>) {
        let mut anomalies = Vec::new();
        let mut read = |path: &Path| match fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) if is_gone(&error) => None,
            Err(error) => {
                let (path, reason) = (path.display().to_string(), error.to_string());
                anomalies.push(Anomaly::Unreadable { path, reason });
                None
            }
        };
        let info = self.root.join("info");
        let mut controls = BTreeMap::new();
        for control in directories(&info).unwrap_or_default() {
            let directory = info.join(&control);
            let files = detect::INFO_FILES.iter().filter_map(|file| {
                read(&directory.join(file)).map(|text| ((*file).to_owned(), text))
            });
            let files: BTreeMap<String, String> = files.collect();
            controls.insert(control, files);
        }
        let schemata = read(&self.root.join("schemata"));
        (InfoTexts { info: info.is_dir().then_some(controls), schemata }, anomalies)
    }

    /// Returns the number of control groups that can exist, including the root group: the smallest
    /// of all levels. `None` if the machine has no control.
    pub(super) fn closids(&self) -> Result<Option<u64>, ResctrlError> {
        let info = self.root.join("info");
        let mut smallest = None;
        for control in directories(&info)? {
            let found = number(&info.join(control).join("num_closids"))?;
            smallest = [smallest, found].into_iter().flatten().min();
        }
        Ok(smallest)
    }

    /// Returns the number of groups that can be monitored; `None` without monitoring.
    pub(super) fn rmids(&self) -> Result<Option<u64>, ResctrlError> {
        number(&self.root.join("info/L3_MON/num_rmids"))
    }

    /// Returns the number whose multiples the kernel rounds bandwidth to. Bandwidth in megabytes per
    /// second is not rounded.
    pub(super) fn bandwidth_step(&self) -> Result<u64, ResctrlError> {
        if self.options.iter().any(|option| option == "mba_MBps") {
            return Ok(1);
        }
        Ok(number(&self.root.join("info/MB/bandwidth_gran"))?.unwrap_or(1))
    }
}

/// Returns a test for the directories of `info` that an error makes unusable.
fn unusable(error: &DetectError) -> Option<impl Fn(&str) -> bool + use<>> {
    let control = match error {
        DetectError::NotMounted | DetectError::NoInfo { .. } => return None,
        DetectError::Info { path, .. } => Path::new(path).file_name()?.to_str()?.to_owned(),
        // "L3 CAT" stands for all directories of the L3, "MBA" for that of memory bandwidth.
        DetectError::CacheIds { control, .. } => control.chars().take(2).collect(),
    };
    Some(move |name: &str| {
        name == control || matches!(name.strip_prefix(&control), Some("CODE" | "DATA"))
    })
}

/// Reads a number; `None` if the file is missing.
fn number(path: &Path) -> Result<Option<u64>, ResctrlError> {
    let text = match fs::read_to_string(path) {
        Err(error) if is_gone(&error) => return Ok(None),
        text => text.map_err(failed("read", path))?,
    };
    let text = text.trim();
    let number = text.parse().map_err(|_| {
        let (path, text) = (path.to_owned(), text.to_owned());
        ResctrlError::Text { path, text, expected: "a number" }
    })?;
    Ok(Some(number))
}
