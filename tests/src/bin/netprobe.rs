//! A small tool that the tests of the cluster run inside nodes: how fast is a path, does a port
//! answer, how much processor is there. It is not part of the product and knows no Slurm.
//!
//! `netprobe serve PORT` | `send HOST PORT BYTES` | `connect HOST PORT` | `spin MS`
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A path that does not answer for this long is as good as blocked.
const CONNECT: Duration = Duration::from_millis(1500);
const CHUNK: usize = 256 * 1024;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", port] => serve(port.parse()?),
        ["send", host, port, bytes] => send(address(host, port)?, bytes.parse()?),
        ["connect", host, port] => {
            println!("{}", connect(address(host, port)?)?);
            Ok(())
        }
        ["spin", ms] => spin(Duration::from_millis(ms.parse()?)),
        _ => bail!("usage: netprobe serve PORT | send HOST PORT BYTES | connect HOST PORT | spin MS"),
    }
}

fn address(host: &str, port: &str) -> Result<SocketAddr> {
    use std::net::ToSocketAddrs;
    let found = format!("{host}:{port}").to_socket_addrs()?.next();
    found.with_context(|| format!("{host} has no address"))
}

/// Takes what is sent and answers with the count.
fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("listening");
    for stream in listener.incoming() {
        let mut stream = stream?;
        thread::spawn(move || -> io::Result<()> {
            let count = io::copy(&mut stream, &mut io::sink())?;
            stream.write_all(&count.to_be_bytes())
        });
    }
    Ok(())
}

/// Sends and prints bytes per second, from the first byte to the receiver's answer.
fn send(to: SocketAddr, bytes: usize) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, CONNECT)?;
    let chunk = vec![0x5a; CHUNK];
    let start = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let now = left.min(CHUNK);
        stream.write_all(&chunk[..now])?;
        left -= now;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    if u64::from_be_bytes(answer) != bytes as u64 {
        bail!("{} bytes arrived of {bytes}", u64::from_be_bytes(answer));
    }
    println!("{:.0}", bytes as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

fn connect(to: SocketAddr) -> Result<&'static str> {
    match TcpStream::connect_timeout(&to, CONNECT) {
        Ok(_) => Ok("open"),
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Ok("refused"),
            ErrorKind::TimedOut => Ok("silent"),
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Ok("unreachable"),
            _ => Err(error.into()),
        },
    }
}

/// Works for a while and prints which share of one processor it got, in percent.
fn spin(time: Duration) -> Result<()> {
    let used = || -> Result<u64> {
        let text = fs::read_to_string("/proc/self/schedstat").context("schedstat")?;
        Ok(text.split_whitespace().next().unwrap_or_default().parse()?)
    };
    let (start, before) = (Instant::now(), used()?);
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
    let share = (used()? - before) as f64 / start.elapsed().as_nanos() as f64;
    println!("{:.0}", share * 100.0);
    Ok(())
}
