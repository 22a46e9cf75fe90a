//! The worker process: runs primitives as an unprivileged user and answers over a socket.
