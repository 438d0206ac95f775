//! Admission plugins by upstream's names: [`Plugin`], and the set of enabled ones: [`Plugins`].
//!
//! They are implemented in [`crate::admission`].

use std::collections::BTreeSet;
use std::fmt;

use thiserror::Error;

macro_rules! plugins {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        /// An admission plugin by upstream's name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Plugin { $($(#[$doc])* $name,)* }

        impl Plugin {
            /// All plugins, in the order in which they run.
            pub const ALL: &'static [Plugin] = &[$(Plugin::$name,)*];

            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Plugin::$name => stringify!($name),)* }
            }
        }
    };
}

plugins! {
    /// Always enabled: controllers rely on the fact that a terminating namespace gets no new
    /// objects.
    NamespaceLifecycle;
    LimitRanger;
    ServiceAccount;
    /// Always enabled: it limits what agents may write.
    NodeRestriction;
    PodSecurity;
    Priority;
    DefaultTolerationSeconds;
    RuntimeClass;
    PodTopologyLabels;
    ResourceQuota;
}

impl Plugin {
    fn find(name: &str) -> Option<Plugin> {
        Plugin::ALL.iter().copied().find(|known| known.name() == name)
    }

    fn can_be_off(self) -> bool {
        !matches!(self, Plugin::NamespaceLifecycle | Plugin::NodeRestriction)
    }
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a selection of plugins is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PluginError {
    #[error("admission plugin {0:?} is unknown; there are {known}", known = listed(|_| true))]
    Unknown(String),
    #[error(
        "admission plugin {0} cannot be disabled; those that can are {others}",
        others = listed(Plugin::can_be_off)
    )]
    AlwaysOn(Plugin),
    #[error("admission plugin {0} is both enabled and disabled")]
    Both(Plugin),
}

fn listed(which: fn(Plugin) -> bool) -> String {
    let names = Plugin::ALL.iter().copied().filter(|plugin| which(*plugin)).map(Plugin::name);
    names.collect::<Vec<_>>().join(", ")
}

/// The enabled plugins; all by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugins(BTreeSet<Plugin>);

impl Default for Plugins {
    fn default() -> Plugins {
        Plugins(Plugin::ALL.iter().copied().collect())
    }
}

impl Plugins {
    /// Enables and disables plugins by name.
    pub fn choose(&mut self, on: &[String], off: &[String]) -> Result<(), PluginError> {
        let find =
            |name: &String| Plugin::find(name).ok_or_else(|| PluginError::Unknown(name.clone()));
        let on = on.iter().map(find).collect::<Result<BTreeSet<_>, _>>()?;
        let off = off.iter().map(find).collect::<Result<BTreeSet<_>, _>>()?;
        if let Some(fixed) = off.iter().find(|plugin| !plugin.can_be_off()) {
            return Err(PluginError::AlwaysOn(*fixed));
        }
        if let Some(both) = on.intersection(&off).next() {
            return Err(PluginError::Both(*both));
        }
        self.0.extend(on);
        self.0.retain(|plugin| !off.contains(plugin));
        Ok(())
    }

    /// Disables a plugin, if it can be disabled.
    #[must_use]
    pub fn without(mut self, plugin: Plugin) -> Plugins {
        if plugin.can_be_off() {
            self.0.remove(&plugin);
        }
        self
    }

    #[must_use]
    pub fn has(&self, plugin: Plugin) -> bool {
        self.0.contains(&plugin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_selected_by_name_and_mistakes_reported() {
        let check = |on: &[&str], off: &[&str], expected: Result<usize, &str>| {
            let [on, off] = [on, off].map(|names| names.iter().map(|n| (*n).to_owned()).collect());
            let (on, off): (Vec<_>, Vec<_>) = (on, off);
            let mut plugins = Plugins::default();
            let chosen = plugins.choose(&on, &off).map(|()| plugins.0.len());
            assert_eq!(chosen.map_err(|e| e.to_string()), expected.map_err(str::to_owned));
        };
        let all = Plugin::ALL.len();
        check(&[], &[], Ok(all));
        check(&["NodeRestriction"], &["ServiceAccount", "PodSecurity"], Ok(all - 2));
        check(
            &["Nonsense"],
            &[],
            Err(
                "admission plugin \"Nonsense\" is unknown; there are NamespaceLifecycle, LimitRanger, \
                 ServiceAccount, NodeRestriction, PodSecurity, Priority, DefaultTolerationSeconds, \
                 RuntimeClass, PodTopologyLabels, ResourceQuota",
            ),
        );
        check(
            &[],
            &["NamespaceLifecycle"],
            Err(
                "admission plugin NamespaceLifecycle cannot be disabled; those that can are LimitRanger, \
                 ServiceAccount, PodSecurity, Priority, DefaultTolerationSeconds, RuntimeClass, \
                 PodTopologyLabels, ResourceQuota",
            ),
        );
        check(
            &["Priority"],
            &["Priority"],
            Err("admission plugin Priority is both enabled and disabled"),
        );
    }

    #[test]
    fn disabled_plugin_can_be_enabled_again() {
        let name = [Plugin::ServiceAccount.name().to_owned()];
        let mut plugins = Plugins::default();
        plugins.choose(&[], &name).unwrap();
        assert!(!plugins.has(Plugin::ServiceAccount) && plugins.has(Plugin::Priority));
        plugins.choose(&name, &[]).unwrap();
        assert_eq!(plugins, Plugins::default());
    }
}
