//! The plugin's arguments in `plugstack.conf`: how they come here, and where the admin is told what is wrong with them. What
//! they mean is in [`diag::plugstack`].

pub use diag::plugstack::Arguments;
use slurm_spank::SpankHandle;

use crate::boundary;

/// Those of this plugin's line.
pub fn of(spank: &SpankHandle) -> Arguments {
    match spank.plugin_argv() {
        Ok(words) => Arguments::parse(words),
        Err(cause) => Arguments {
            mistakes: vec![format!("plugstack.conf: the plugin's arguments can't be read: {cause}")],
            ..Arguments::default()
        },
    }
}

/// Tells the admin, in slurmd's log, what could not be used.
pub fn log_mistakes(arguments: &Arguments) {
    arguments.mistakes.iter().for_each(|mistake| boundary::error(mistake));
}
