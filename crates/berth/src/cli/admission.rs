//! The flags `--enable-admission-plugins` and `--disable-admission-plugins` of commands with an API
//! server.

use apiserver::Plugins;

use super::BadInput;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Admission plugins to enable (comma-separated); all are enabled by default
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable (comma-separated), such as ServiceAccount
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
}

impl Args {
    pub(super) fn choose(&self, plugins: &mut Plugins) -> Result<(), BadInput> {
        let (on, off) = (&self.enable_admission_plugins, &self.disable_admission_plugins);
        plugins.choose(on, off).map_err(|error| BadInput::new(error.to_string()))
    }
}
