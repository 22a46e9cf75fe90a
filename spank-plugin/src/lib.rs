//! spank-plugin.
