//! The device layer: what is loaded at run time on a GPU node, and nothing that decides.
//!
//! So far it answers one question: are the libraries of the CUDA engine there? A missing one is an error value
//! with its name and the loader's own words, never a panic and never a silent fall-back to the host engine.

mod libraries;

pub use libraries::{LibraryError, require_cuda};
