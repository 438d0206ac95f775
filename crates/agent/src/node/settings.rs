//! The settings of a KubeletConfiguration for the node itself: [`Settings`], with upstream's defaults.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use objects::{KubeletConfig, Quantity, duration};
use serde_json::Value;

use crate::runtime::logs::rotate::Policy;
use crate::server::access::{self, Authorization};

/// The default address that a kubelet listens on.
pub const EVERY_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Settings of the node status, eviction and garbage collection.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub register: bool,
    /// The address of the agent's server; `None` if the configuration has none.
    pub address: Option<IpAddr>,
    /// The port of the agent's own server.
    pub port: u16,
    /// Authentication and authorization of its requests.
    pub access: access::Settings,
    pub taints: Vec<Value>,
    pub provider_id: String,
    pub attach_detach: bool,
    pub local_storage_isolation: bool,
    /// Interval in which the status is computed.
    pub update_every: Duration,
    /// Interval in which an unchanged status is written.
    pub report_every: Duration,
    pub lease_seconds: u32,
    /// `None` is unlimited.
    pub max_images: Option<usize>,
    pub pressure_transition: Duration,
    pub eviction_max_pod_grace: i64,
    pub image_high_percent: u8,
    pub image_low_percent: u8,
    pub image_min_age: Duration,
    /// `None` disables the maximum age.
    pub image_max_age: Option<Duration>,
    /// Maximum size of container logs, and how many are kept.
    pub logs: Policy,
    /// Interval in which log sizes are checked.
    pub logs_every: Duration,
    /// Interval in which static pod manifests are read.
    pub files_every: Duration,
    /// Sysctls that pods may set in addition to the safe ones.
    pub allowed_sysctls: Vec<String>,
    /// Number of concurrent image pulls.
    pub parallel_pulls: usize,
}

/// Practically unlimited: more than the number of pods.
const MANY_PULLS: usize = 1 << 16;

/// A field with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value} should be {wanted}")]
pub struct SettingsError {
    pub field: &'static str,
    pub value: String,
    pub wanted: String,
}

struct Reader<'a> {
    config: &'a KubeletConfig,
    errors: Vec<SettingsError>,
}

impl Reader<'_> {
    fn read<T>(
        &mut self,
        field: &'static str,
        wanted: &'static str,
        usual: T,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> T {
        let mut names = field.split('.');
        let first = names.next().and_then(|name| self.config.untyped.get(name));
        let given = names.fold(first, |of, name| of.and_then(|of| of.get(name)));
        let Some(given) = given.filter(|given| !given.is_null()) else {
            return usual;
        };
        read(given).unwrap_or_else(|| {
            self.errors.push(SettingsError {
                field,
                value: given.to_string(),
                wanted: wanted.to_owned(),
            });
            usual
        })
    }

    fn switch(&mut self, field: &'static str) -> bool {
        self.switch_or(field, true)
    }

    fn switch_or(&mut self, field: &'static str, usual: bool) -> bool {
        self.read(field, "true or false", usual, Value::as_bool)
    }

    /// Zero means the default, as upstream.
    fn time(&mut self, field: &'static str, usual: Duration) -> Duration {
        let read = |given: &Value| {
            let given = duration::parse(given.as_str()?)?;
            Some(if given.is_zero() { usual } else { given })
        };
        self.read(field, "a duration such as 10s", usual, read)
    }

    fn texts(&mut self, field: &'static str) -> Vec<String> {
        self.read(field, "a list of texts", Vec::new(), |given| {
            given.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        })
    }

    /// Unless pulls are serialized, at most `maxParallelImagePulls` at a time, or any number. As
    /// upstream, a limit above one disables serialization.
    fn parallel_pulls(&mut self) -> usize {
        let most = self.read("maxParallelImagePulls", "a number above zero", None, |given| {
            let number = usize::try_from(given.as_u64()?).ok()?;
            (number > 0).then_some(Some(number.min(MANY_PULLS)))
        });
        let usual = most.is_none_or(|most| most < 2);
        match self.read("serializeImagePulls", "true or false", usual, Value::as_bool) {
            true => 1,
            false => most.unwrap_or(MANY_PULLS),
        }
    }

    fn percent(&mut self, field: &'static str, usual: u8) -> u8 {
        let read = |given: &Value| {
            let number = u8::try_from(given.as_u64()?).ok()?;
            (number <= 100).then_some(number)
        };
        self.read(field, "a percentage from 0 to 100", usual, read)
    }
}

/// Reads `authentication` and `authorization`.
fn access_of(reader: &mut Reader<'_>) -> access::Settings {
    let usual = access::Settings::default();
    let kept_for = usual.tokens.unwrap_or_default();
    let enabled = reader.switch_or("authentication.webhook.enabled", true);
    let kept_for = reader.time("authentication.webhook.cacheTTL", kept_for);
    let (mut allowed, mut denied) = (Duration::ZERO, Duration::ZERO);
    if let Authorization::Webhook { allowed: a, denied: d } = &usual.authorization {
        (allowed, denied) = (*a, *d);
    }
    let allowed = reader.time("authorization.webhook.cacheAuthorizedTTL", allowed);
    let denied = reader.time("authorization.webhook.cacheUnauthorizedTTL", denied);
    let webhook = Authorization::Webhook { allowed, denied };
    access::Settings {
        anonymous: reader.switch_or("authentication.anonymous.enabled", usual.anonymous),
        tokens: enabled.then_some(kept_for),
        authorization: reader.read(
            "authorization.mode",
            "Webhook or AlwaysAllow",
            webhook.clone(),
            |given| match given.as_str()? {
                "AlwaysAllow" => Some(Authorization::AlwaysAllow),
                "Webhook" | "" => Some(webhook),
                _ => None,
            },
        ),
    }
}

impl Settings {
    /// Returns all errors at once.
    pub fn of(config: &KubeletConfig) -> Result<Settings, Vec<SettingsError>> {
        let seconds = Duration::from_secs;
        let mut reader = Reader { config, errors: Vec::new() };
        let update_every = reader.time("nodeStatusUpdateFrequency", seconds(10));
        // Before there was a second interval, this one set both.
        let both = config.untyped.contains_key("nodeStatusUpdateFrequency");
        let report_usual = if both { update_every } else { seconds(5 * 60) };
        let most = |given: &Value| match given.as_i64()? {
            -1 => Some(None),
            number => usize::try_from(number).ok().map(Some),
        };
        let settings = Settings {
            register: reader.switch("registerNode"),
            address: reader.read("address", "an IP address", None, |given| {
                match given.as_str()? {
                    "" => Some(None),
                    text => text.parse().ok().map(Some),
                }
            }),
            access: access_of(&mut reader),
            port: reader.read("port", "a port from 1 to 65535", 10_250, |given| {
                let port = u16::try_from(given.as_u64()?).ok()?;
                Some(if port == 0 { 10_250 } else { port })
            }),
            taints: reader.read("registerWithTaints", "a list of taints", Vec::new(), |given| {
                let taints = given.as_array()?;
                let whole =
                    |taint: &&Value| taint["key"].is_string() && taint["effect"].is_string();
                (taints.iter().filter(whole).count() == taints.len()).then(|| taints.clone())
            }),
            provider_id: reader.read("providerID", "a text", String::new(), |given| {
                given.as_str().map(str::to_owned)
            }),
            attach_detach: reader.switch("enableControllerAttachDetach"),
            local_storage_isolation: reader.switch("localStorageCapacityIsolation"),
            update_every,
            report_every: reader.time("nodeStatusReportFrequency", report_usual),
            lease_seconds: reader.read(
                "nodeLeaseDurationSeconds",
                "a number of seconds above zero",
                40,
                |given| {
                    let seconds = u32::try_from(given.as_u64()?).ok()?;
                    Some(if seconds == 0 { 40 } else { seconds })
                },
            ),
            max_images: reader.read(
                "nodeStatusMaxImages",
                "a number of images, or -1 for all",
                Some(50),
                most,
            ),
            pressure_transition: reader.time("evictionPressureTransitionPeriod", seconds(5 * 60)),
            eviction_max_pod_grace: reader.read(
                "evictionMaxPodGracePeriod",
                "a number of seconds",
                0,
                Value::as_i64,
            ),
            image_high_percent: reader.percent("imageGCHighThresholdPercent", 85),
            image_low_percent: reader.percent("imageGCLowThresholdPercent", 80),
            image_min_age: reader.time("imageMinimumGCAge", seconds(2 * 60)),
            image_max_age: Some(reader.time("imageMaximumGCAge", Duration::ZERO))
                .filter(|age| !age.is_zero()),
            logs: Policy {
                max_size: reader.read(
                    "containerLogMaxSize",
                    "a quantity of bytes above zero such as 10Mi",
                    10 << 20,
                    |given| match given.as_str()? {
                        "" => Some(10 << 20),
                        text => {
                            let bytes = Quantity::parse(text).ok()?.checked_value()?;
                            u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)
                        }
                    },
                ),
                max_files: reader.read(
                    "containerLogMaxFiles",
                    "a number of files from 2 on",
                    5,
                    |given| usize::try_from(given.as_u64()?).ok().filter(|files| *files > 1),
                ),
            },
            // Names of rotated logs have a resolution of one second.
            logs_every: reader.read(
                "containerLogMonitorInterval",
                "a duration of at least 3s",
                seconds(10),
                |given| duration::parse(given.as_str()?).filter(|every| *every >= seconds(3)),
            ),
            files_every: reader.time("fileCheckFrequency", seconds(20)),
            allowed_sysctls: reader.texts("allowedUnsafeSysctls"),
            parallel_pulls: reader.parallel_pulls(),
        };
        let Settings { image_high_percent: high, image_low_percent: low, .. } = settings;
        if low >= high {
            reader.errors.push(SettingsError {
                field: "imageGCLowThresholdPercent",
                value: low.to_string(),
                wanted: "less than imageGCHighThresholdPercent".to_owned(),
            });
        }
        if reader.errors.is_empty() { Ok(settings) } else { Err(reader.errors) }
    }
}
