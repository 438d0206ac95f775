//! The feature gates that decisions depend on. Reading them from configuration is elsewhere.

/// Which maturity levels and features are enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    pub cpu_policy_alpha_options: bool,
    pub cpu_policy_beta_options: bool,
    /// `WindowsCPUAndMemoryAffinity`: without it the managers do nothing on Windows.
    pub windows_affinity: bool,
}

impl Default for Gates {
    /// As Kubernetes 1.37 has them.
    fn default() -> Gates {
        Gates {
            cpu_policy_alpha_options: false,
            cpu_policy_beta_options: true,
            windows_affinity: false,
        }
    }
}

impl Gates {
    /// Everything on that the recorded vectors have on.
    pub const ALL: Gates = Gates {
        cpu_policy_alpha_options: true,
        cpu_policy_beta_options: true,
        windows_affinity: true,
    };
}
