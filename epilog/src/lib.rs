//! epilog.
