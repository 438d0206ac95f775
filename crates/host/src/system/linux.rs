//! Parsers of Linux files: `/proc/meminfo`, `/etc/os-release`, `/proc/loadavg`, `/proc/stat`,
//! `/proc/net/dev`, `/proc/self/stat`, names of huge pages, the auxiliary vector.
//!
//! Contents are not trusted; nonsense is ignored. Opens no file.

use super::{Interface, Memory, ProcessUsage, Traffic};

/// The kernel's ticks per second in process times, on every current system.
const TICKS: u64 = 100;

/// Parses `/proc/meminfo`; `None` if the total is missing.
#[must_use]
pub fn meminfo(text: &str) -> Option<Memory> {
    let amount = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let free = amount("MemFree").unwrap_or(0);
    Some(Memory {
        total: amount("MemTotal")?,
        free,
        // Kernels before 3.14 do not report it.
        available: amount("MemAvailable").unwrap_or(free),
        inactive_file: amount("Inactive(file)").unwrap_or(0),
        swap_total: amount("SwapTotal").unwrap_or(0),
        swap_free: amount("SwapFree").unwrap_or(0),
    })
}

/// Returns the name of the system from `/etc/os-release`.
#[must_use]
pub fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))?.trim();
    let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''));
    let inner = match quote {
        Some(quote) => value.strip_prefix(quote)?.strip_suffix(quote)?,
        None => value,
    };
    let mut name = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            // Unescape as a shell does, because os-release must be readable by one.
            '\\' if quote == Some('"') => name.extend(letters.next()),
            other => name.push(other),
        }
    }
    (!name.is_empty()).then_some(name)
}

/// Returns the number of threads from `/proc/loadavg`: `0.20 0.18 0.12 1/80 11206`.
#[must_use]
pub fn threads(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Returns the seconds since boot from `/proc/uptime`.
#[must_use]
pub fn uptime(text: &str) -> Option<f64> {
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// Returns the busy time of all CPUs in nanoseconds from the first line of `/proc/stat`.
#[must_use]
pub fn busy(stat: &str) -> Option<u64> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let mut next = || -> Option<u64> { fields.next()?.parse().ok() };
    let (user, nice, system) = (next()?, next()?, next()?);
    let (_idle, _waiting) = (next(), next());
    // Guest time is already included in user time.
    let rest: u64 = [next(), next(), next()].into_iter().flatten().sum();
    let ticks = user.checked_add(nice)?.checked_add(system)?.checked_add(rest)?;
    ticks.checked_mul(1_000_000_000 / TICKS)
}

/// Parses `/proc/net/dev` without the loopback interface.
#[must_use]
pub fn interfaces(text: &str) -> Vec<Interface> {
    let read = |line: &str| -> Option<Interface> {
        let (name, figures) = line.split_once(':')?;
        let figures: Vec<u64> =
            figures.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let traffic = |from: usize| -> Option<Traffic> {
            let [bytes, packets, errors, dropped] = *figures.get(from..from + 4)? else {
                return None;
            };
            Some(Traffic { bytes, packets, errors, dropped })
        };
        let name = name.trim().to_owned();
        Some(Interface { name, received: traffic(0)?, sent: traffic(8)? })
    };
    text.lines().filter_map(read).filter(|interface| interface.name != "lo").collect()
}

/// Returns the interface of the default route from `/proc/net/route`.
#[must_use]
pub fn default_interface(route: &str) -> Option<&str> {
    route.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (name, to) = (fields.next()?, fields.next()?);
        (to == "00000000").then_some(name)
    })
}

/// Parses `/proc/self/stat`, given the page size; it has no count of open files.
#[must_use]
pub fn process(stat: &str, page: u64) -> Option<ProcessUsage> {
    // The name may contain blanks and parentheses.
    let (_, after) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    let number = |index: usize| -> Option<u64> { fields.get(index)?.parse().ok() };
    let ticks = number(11)?.checked_add(number(12)?)?;
    Some(ProcessUsage {
        cpu: ticks.checked_mul(1_000_000_000 / TICKS)?,
        virtual_memory: number(20)?,
        resident: number(21)?.checked_mul(page)?,
        open_files: 0,
    })
}

/// Returns the sizes of huge pages in bytes, ascending, from the names in
/// `/sys/kernel/mm/hugepages`.
#[must_use]
pub fn huge_page_sizes<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<u64> {
    let size = |name: &str| -> Option<u64> {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        kib.checked_mul(1024)
    };
    let mut sizes: Vec<u64> = names.into_iter().filter_map(size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Returns true if `/proc/self/uid_map` is that of a user namespace: the initial one maps every id
/// to itself.
#[must_use]
pub fn maps_users(uid_map: &str) -> bool {
    let mut fields = uid_map.split_whitespace().map(str::parse::<u64>);
    let first = (fields.next(), fields.next(), fields.next(), fields.next());
    !matches!(first, (None, ..) | (Some(Ok(0)), Some(Ok(0)), Some(Ok(4_294_967_295)), None))
}

/// Returns the page size from `/proc/self/auxv`, a list of pairs of machine words.
#[must_use]
pub fn page_size(auxv: &[u8]) -> Option<u64> {
    const AT_PAGESZ: usize = 6;
    const WORD: usize = size_of::<usize>();
    let word = |bytes: &[u8]| Some(usize::from_ne_bytes(bytes.try_into().ok()?));
    let mut pairs = auxv.chunks_exact(2 * WORD);
    let found = pairs.find(|pair| word(&pair[..WORD]) == Some(AT_PAGESZ))?;
    u64::try_from(word(&found[WORD..])?).ok().filter(|size| size.is_power_of_two())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn meminfo_is_parsed_as_upstream_counts_it() {
        let text = "MemTotal:       24682416 kB\nMemFree:         1000 kB\nMemAvailable:   9000 kB\n\
                    Inactive:  77 kB\nInactive(anon):  7 kB\nInactive(file):     2000 kB\n\
                    SwapTotal:       10 kB\nSwapFree:  5 kB\nHugePages_Total:       0\n";
        let memory = meminfo(text).unwrap();
        let expected = Memory {
            total: 24_682_416 << 10,
            free: 1000 << 10,
            available: 9000 << 10,
            inactive_file: 2000 << 10,
            swap_total: 10 << 10,
            swap_free: 5 << 10,
        };
        assert_eq!(memory, expected);
        assert_eq!(memory.outside_working_set(), 3000 << 10);
    }

    #[test]
    fn malformed_files_yield_nothing() {
        assert_eq!(meminfo(""), None);
        assert_eq!(meminfo("MemTotal: x kB"), None);
        assert_eq!(meminfo("MemTotal: 99999999999999999999 kB"), None);
        assert_eq!(threads("0.20 0.18"), None);
        assert_eq!(threads("0.20 0.18 0.12 1/80 11206"), Some(80));
        assert_eq!(uptime("-1 2"), None);
        assert_eq!(uptime("350735.47 234388.90"), Some(350_735.47));
    }

    #[test]
    fn os_release_is_unquoted_like_a_shell() {
        let check = |text: &str, name: Option<&str>| {
            assert_eq!(pretty_name(text).as_deref(), name, "{text}");
        };
        check("NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n", {
            Some("Debian GNU/Linux 12 (bookworm)")
        });
        check("PRETTY_NAME='Void'", Some("Void"));
        check("PRETTY_NAME=Alpine", Some("Alpine"));
        check(r#"PRETTY_NAME="A \"B\" C""#, Some("A \"B\" C"));
        check("PRETTY_NAME=\"half", None);
        check("PRETTY_NAME=\"\"", None);
        check("NAME=x", None);
    }

    #[test]
    fn huge_pages_are_listed_by_size() {
        let names = ["hugepages-2048kB", "hugepages-1048576kB", "odd", "hugepages-xkB"];
        assert_eq!(huge_page_sizes(names), [2 << 20, 1 << 30]);
    }

    #[test]
    fn user_namespaces_are_recognized() {
        assert!(!maps_users("         0          0 4294967295\n"));
        assert!(maps_users("         0       1000          1\n"));
        assert!(maps_users("0 0 4294967294\n1 1 1\n"));
        assert!(!maps_users(""));
    }

    #[test]
    fn page_size_is_found_in_the_auxiliary_vector() {
        let vector: Vec<u8> =
            [3_usize, 64, 6, 4096, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(page_size(&vector), Some(4096));
        assert_eq!(page_size(&vector[..16]), None);
        assert_eq!(page_size(b"short"), None);
    }

    #[test]
    fn busy_time_excludes_idle_time() {
        let text = "cpu  100 20 30 4000 50 6 7 8 9 1\ncpu0 1 2 3 4\n";
        assert_eq!(busy(text), Some(171 * 10_000_000));
        assert_eq!(busy("cpu  1 x 3\n"), None);
        assert_eq!(busy(""), None);
    }

    #[test]
    fn traffic_is_parsed_by_interface() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame \
                    compressed multicast|bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 \
                    2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "eth0");
        let traffic = |bytes, packets, errors, dropped| Traffic { bytes, packets, errors, dropped };
        assert_eq!(found[0].received, traffic(10, 2, 3, 4));
        assert_eq!(found[0].sent, traffic(50, 6, 7, 8));
        let route = "Iface Destination Gateway\neth1 0000A8C0 0\neth0 00000000 0100A8C0\n";
        assert_eq!(default_interface(route), Some("eth0"));
        assert_eq!(default_interface("Iface\n"), None);
    }

    #[test]
    fn process_usage_is_parsed_after_any_name() {
        let text = "12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 99 4096000 25 0\n";
        let usage = process(text, 4096).unwrap();
        assert_eq!(usage.cpu, 2_000_000_000);
        assert_eq!((usage.virtual_memory, usage.resident), (4_096_000, 25 * 4096));
        assert_eq!(process("12 (x) S 1", 4096), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "(?s).{0,200}", bytes in any::<Vec<u8>>()) {
            let _ = (meminfo(&text), pretty_name(&text), threads(&text), uptime(&text));
            let _ = (huge_page_sizes([text.as_str()]), maps_users(&text), page_size(&bytes));
            let _ = (busy(&text), interfaces(&text), default_interface(&text), process(&text, 4096));
        }
    }
}
