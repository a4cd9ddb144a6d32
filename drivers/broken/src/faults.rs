//! The faults that this driver can have, each with the check that must catch it.

/// The driver mode in which a fault occurs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// `init` says `attach: false`; the driver has `mount` and `unmount`.
    Plain,
    /// Volumes are attached; the driver has `mountdevice` and `unmountdevice`.
    Attached,
}

macro_rules! faults {
    ($($fault:ident $name:literal $mode:ident $check:literal $bug:literal;)*) => {
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum Fault { $($fault),* }

        /// Fault, name, mode, check, and the real bug that it stands for.
        pub const FAULTS: &[(Fault, &str, Mode, &str, &str)] =
            &[$((Fault::$fault, $name, Mode::$mode, $check, $bug)),*];
    };
}

faults! {
    AnswersTwice "answers-twice" Plain "out.one-json" "a driver for LVM answered twice";
    WarnsOnStderr "warns-on-stderr" Plain "out.stderr-empty" "lvm's warnings of leaked descriptors got into the reply";
    ForeignEncoding "foreign-encoding" Plain "out.utf8" "messages of programs were passed on in the node's encoding";
    EndsWithoutLine "ends-without-line" Plain "out.newline" "scripts answered with echo -n";
    SaysFailed "says-failed" Plain "out.status-word" "a driver for ZFS said Failed";
    QuotesNumbers "quotes-numbers" Plain "out.types" "a driver for vSphere had attached as a string";
    ExitsOneAfterSuccess "exits-one-after-success" Plain "out.exit0-on-success" "a script's last command failed after the reply";
    ExitsOneAfterFailure "exits-one-after-failure" Plain "out.exit-on-failure" "nearly all drivers, whose arguments kubelet then logs";
    FailsWithoutWords "fails-without-words" Plain "out.failure-has-message" "scripts ended with a Failure and nothing else";
    DumpsArguments "dumps-arguments" Plain "out.message-one-line-256" "drivers answered with all their arguments";
    LeavesAChild "leaves-a-child" Plain "out.child-closes-output" "a FUSE daemon kept the driver's output";
    SometimesNotSupported "sometimes-not-supported" Plain "out.not-supported-consistent" "one of several backends lacked a callout";
    UsageWithoutArguments "usage-without-arguments" Plain "cli.no-args" "twelve drivers printed a usage text";
    InvalidCommand "invalid-command" Plain "cli.unknown-callout" "a driver failed expandfs because it was new";
    IndexesArguments "indexes-arguments" Plain "cli.missing-args" "a driver in Go indexed its arguments and crashed";
    UsageForOneMore "usage-for-one-more" Plain "cli.extra-args" "cobra printed its usage text";
    TakesBrokenForEmpty "takes-broken-for-empty" Plain "cli.bad-json" "scripts went on after an error of jq";
    TakesListForEmpty "takes-list-for-empty" Plain "cli.json-not-object" "scripts took empty answers of jq for empty options";
    TellsTwoCapabilities "tells-two-capabilities" Plain "init.success-all-capabilities" "drivers told attach alone";
    NullCapabilities "null-capabilities" Plain "init.capabilities-not-null" "a library wrote what was not set as null";
    InitTellsItsProcess "init-tells-its-process" Plain "init.idempotent-fast" "init told what it found at that moment";
    InitWritesBeside "init-writes-beside" Plain "init.no-side-effects" "init wrote a log beside the driver";
    InitWritesTheSame "init-writes-the-same" Plain "init.no-side-effects" "init wrote one and the same file beside the driver, each time";
    InitListens "init-listens" Plain "init.no-side-effects" "init started a daemon";
    MountErrorDropped "mount-error-dropped" Plain "mnt.happy-rw-data" "a driver for CIFS took mount's exit code 32 for success";
    IgnoresReadOnly "ignores-read-only" Plain "mnt.ro-is-ro" "the example for NFS had an inverted test";
    StacksMounts "stacks-mounts" Plain "mnt.repeat-no-stack" "drivers mounted without looking";
    AnyMountWillDo "any-mount-will-do" Plain "mnt.other-thing-mounted-there" "mountpoint -q was a script's only question";
    MountsNothingInstead "mounts-nothing-instead" Plain "mnt.failure-not-success" "a driver dropped the error of a bind mount";
    OldFsGroupKey "old-fsgroup-key" Plain "mnt.fsgroup-both-keys" "most drivers know the key of the documentation alone";
    EmptiesTheTarget "empties-the-target" Plain "mnt.target-nonempty" "a driver for git ran rm -rf on the directory";
    ClosedListOfKeys "closed-list-of-keys" Plain "mnt.unknown-key-ignored" "drivers looked for Kubernetes' keys in their own list";
    LeavesAFile "leaves-a-file" Plain "umt.happy" "a driver left its state in the directory";
    NotMountedAnyMore "not-mounted-any-more" Plain "umt.repeat" "umount's words were passed on";
    NeverMounted "never-mounted" Plain "umt.never-mounted" "a driver asked its records first";
    NoSuchDirectory "no-such-directory" Plain "umt.missing-dir" "drivers looked at the directory first";
    LazyUnmount "lazy-unmount" Plain "umt.busy" "a driver for vSphere used MNT_DETACH and said Success";
    DeletesOnUnmount "deletes-on-unmount" Plain "umt.keeps-data" "a driver for CephFS took an error for not mounted, and ran rm -fr";
    SyncsFirst "syncs-first" Plain "umt.dead-server" "drivers synced and measured a volume before they unmounted it";
    TellsTheSecret "tells-the-secret" Plain "out.no-secret-echo" "drivers answered with their options, passwords among them";
    EchoesBrokenJson "echoes-broken-json" Plain "out.no-secret-on-bad-json" "three drivers echoed what they could not read";
    WaitsForEver "waits-for-ever" Plain "out.deadline" "nearly all drivers wait for locks and commands without a limit";
    WaitsForItsMkfs "waits-for-its-mkfs" Plain "out.deadline" "drivers waited for another call's mkfs to end, which it never did";
    ReadsInput "reads-input" Plain "out.closed-stdin" "a script read from its standard input";
    NeedsThePath "needs-the-path" Plain "out.minimal-env" "scripts had no PATH of their own";
    NeedsTheLog "needs-the-log" Plain "out.readonly-log-dir" "a driver ended because it could not log";
    NeedsTheLogToMount "needs-the-log-to-mount" Plain "out.readonly-log-dir" "a script's set -e met a log that could not be written, after the volume was found";
    LogsBeside "logs-beside" Plain "out.plugin-dir-untouched" "a driver's log lay beside it";
    IgnoresUnknown "ignores-unknown" Plain "cli.unknown-option" "nearly all drivers take what they know";
    TrustsNumbers "trusts-numbers" Plain "cli.reserved-key-in-options" "a driver crashed on a number it could not read";
    AsksAShell "asks-a-shell" Plain "cli.shell-metachars" "a driver for NAS ran sh -c with the option path";
    SplitsTheType "splits-the-type" Plain "cli.shell-metachars" "the example for LVM has mkfs -t $FSTYPE without quotes";
    TrustsADash "trusts-a-dash" Plain "cli.shell-metachars" "an option of a volume was an option of mount(8)";
    DetachAsksAShell "detach-asks-a-shell" Attached "cli.shell-metachars" "a driver looked for the name it was to detach with grep, in a shell";
    TakesAnyDirectory "takes-any-directory" Plain "cli.path-traversal" "a driver bind-mounted the node's /etc/ssl";
    TakesOctalLiterally "takes-octal-literally" Plain "cli.spaces-in-paths" "a driver read /proc/mounts without decoding it";
    OneNameForAll "one-name-for-all" Plain "gvn.stable-unique" "a driver answered one name for all it did not find";
    NameNeedsTheVolume "name-needs-the-volume" Plain "gvn.never-failure" "drivers asked the backend for the name";
    NamesNoDevice "names-no-device" Attached "att.happy" "drivers attached, and told nobody where";
    LosesTheDevice "loses-the-device" Attached "att.happy" "a driver looked for what was new in /dev";
    AttachesTwice "attaches-twice" Attached "att.repeat-same-device" "a driver attached what was attached";
    AttachesNothing "attaches-nothing" Attached "att.missing-volume" "scripts answered Success whatever they found";
    StealsFromNodes "steals-from-nodes" Attached "att.other-node-refused" "a driver detached the disk from whatever node had it";
    ForgetsTheMode "forgets-the-mode" Attached "att.ro-rw-conflict" "drivers answered already attached without asking how";
    WaitsWithoutDevice "waits-without-device" Attached "wfa.returns-device" "drivers printed Success alone";
    DeafToSignals "deaf-to-signals" Attached "wfa.timeout" "scripts waited in a sleep, which no signal reached";
    NeverSaysAttached "never-says-attached" Attached "isa.true-after-attach" "a driver asked for another node, and took errors for false";
    AlwaysSaysAttached "always-says-attached" Attached "isa.false-is-success" "the example for LVM always said true";
    ErrorsAreFalse "errors-are-false" Attached "isa.error-is-not-false" "a driver answered false to every error of its backend";
    DetachWantsADevice "detach-wants-a-device" Attached "det.happy" "drivers followed the documentation, which says detach gets the device";
    DetachesOnce "detaches-once" Attached "det.repeat" "drivers passed on not attached";
    DetachesTheKnown "detaches-the-known" Attached "det.never-attached" "drivers looked the volume up first";
    IgnoresTheNode "ignores-the-node" Attached "det.wrong-node-noop" "a driver ignored the node's name";
    DetachesByForce "detaches-by-force" Attached "det.busy-refused" "drivers detached what was in use";
    FormatsEveryTime "formats-every-time" Plain "fmt.blank-formats-once" "drivers formatted at every mount";
    ReformatsOthers "reformats-others" Plain "fmt.foreign-fs-refused" "a driver ran mkfs if the file system was not the one asked for";
    BlkidSaysNothing "blkid-says-nothing" Plain "fmt.unsigned-data-refused" "the example for LVM and its copies: no signature was blank";
    TablesAreBlank "tables-are-blank" Plain "fmt.partition-table-refused" "the example for LVM formatted a disk with a GPT";
    AmbivalentIsBlank "ambivalent-is-blank" Plain "fmt.ambivalent-refused" "the example for LVM formatted an ext4 with a stale superblock of xfs";
    OnlyFilesystemsCount "only-filesystems-count" Plain "fmt.luks-lvm-raid-swap-refused" "drivers asked for file systems alone";
    UnreadableIsBlank "unreadable-is-blank" Plain "fmt.unreadable-refused" "a failed probe was taken for a blank device";
    FormatsForReaders "formats-for-readers" Plain "fmt.ro-never-formats" "drivers formatted before they looked at readwrite";
    NeverGrows "never-grows" Plain "exp.grow-online" "drivers said requiresFSResize and failed every expandfs";
    GrowsNothing "grows-nothing" Plain "exp.grow-online" "a driver said Success for file systems it did not know";
    MatchesExistingSize "matches-existing-size" Plain "exp.repeat-noop" "lvextend's words were passed on";
    ShrinksToo "shrinks-too" Plain "exp.shrink-refused" "a size was handed to a command that also shrinks";
    BelievesOld "believes-old" Plain "exp.volume-never-shrinks" "a driver cut its volume to NEW where that was above OLD";
    CutsSizesDown "cuts-sizes-down" Plain "exp.not-multiple-of-sector" "drivers counted in whole MiB";
    FormatsToGrow "formats-to-grow" Plain "exp.data-intact" "drivers formatted what had not the device's size";
    GrowsOnlyOnce "grows-only-once" Plain "exp.interrupted-resumes" "a driver grew the file system only if it just grew the device";
    FormatsAfterACut "formats-after-a-cut" Plain "exp.interrupted-resumes" "a driver made new what it had not finished";
    LosesTheEmptyDevice "loses-the-empty-device" Attached "exp.any-directory" "an unquoted $* dropped the empty argument";
    BelievesTheFirst "believes-the-first" Plain "exp.two-callers" "a driver answered Success because another call was at it";
    ProvisionsAnew "provisions-anew" Plain "prv.repeat-same-volume" "a driver made a volume with a random name at every call";
    CutsNames "cuts-names" Plain "prv.names-apart" "a driver cut names to the 32 letters of its backend";
    RoundsSizesDown "rounds-sizes-down" Plain "prv.size-reached" "a driver made whole MiB, rounded down";
    TellsOneByte "tells-one-byte" Plain "prv.size-reached" "a driver answered a capacity of one byte, whatever it made";
    MakesLess "makes-less-than-it-tells" Plain "prv.size-reached" "a driver made less than it answered";
    AnswersTheSizeAsked "answers-the-size-asked" Plain "prv.other-request-refused" "a driver found the volume, and answered the size it was asked";
    MakesAnotherSizeAnew "makes-another-size-anew" Plain "prv.other-request-refused" "a driver made a volume anew if another size was asked for";
    NamesWithTheType "names-with-the-type" Plain "prv.other-request-refused" "the file system was a part of the volume's name";
    AnswersTooLittle "answers-too-little" Plain "prv.options-mount" "a driver answered no options, and its mount needed some";
    AnswersTheType "answers-the-type-as-option" Plain "prv.options-valid" "a driver answered kubernetes.io/fsType as an option";
    AnswersNumbers "answers-numbers-as-options" Plain "prv.options-valid" "a driver answered the size as an option that is a number";
    PromisesAnything "promises-anything" Plain "prv.no-room-refused" "a driver made what was left, and answered what it was asked";
    KeepsAFailedName "keeps-a-failed-name" Plain "prv.no-room-refused" "a driver wrote a name down before it looked for room, and left it there";
    TakesAnySize "takes-any-size" Plain "prv.bad-size-refused" "a driver took what it could not read for its usual size";
    IgnoresParameters "ignores-parameters" Plain "prv.unknown-parameter" "nearly all drivers take what they know";
    JoinsTheName "joins-the-name" Plain "prv.hostile-values" "a driver joined the name to the directory of its volumes";
    ProvisionsAnyDirectory "provisions-any-directory" Plain "prv.hostile-values" "a parameter named the directory to be mounted, and nobody looked at it";
    RecordsTheName "records-the-name-first" Plain "prv.interrupted-resumes" "a driver took every name in its records for a volume that was made";
    LooksForTheName "looks-for-the-name-first" Plain "prv.parallel-same-name" "a driver looked for the name, and made the volume later";
    DeletesOnce "deletes-once" Plain "del.repeat" "drivers passed on no such volume";
    DeletesTheKnown "deletes-the-known" Plain "del.never-existed" "drivers looked the volume up first";
    DeletesByOptions "deletes-by-options-alone" Plain "del.answer-lost" "a driver did nothing where it was given no options";
    DeletesNothing "deletes-nothing" Plain "del.gone-for-good" "a driver answered Success, and left the removal to somebody";
    KeepsTheName "keeps-the-name" Plain "del.gone-for-good" "a driver never freed names";
    DeletesWhatBeginsAlike "deletes-what-begins-alike" Plain "del.only-it" "a script had rm with a * behind the name";
    DeletesWhatIsMounted "deletes-what-is-mounted" Plain "del.mounted-refused" "a driver removed the file behind a mounted loop device";
    UnmountsToDelete "unmounts-to-delete" Plain "del.mounted-refused" "a driver unmounted by force what it was to delete";
    RemovesAnyPath "removes-any-path" Plain "del.hostile-values" "a driver removed the path that an option named";
    TellsEndlessRoom "tells-endless-room" Plain "cap.plausible" "a driver answered 2^64-1 for unlimited";
    FreesMoreThanThereIs "frees-more-than-there-is" Plain "cap.plausible" "free was counted in another unit than the size";
    TellsAConstant "tells-a-constant" Plain "cap.goes-down" "a driver answered what was configured";
    CountsInMebibytes "counts-in-mebibytes" Plain "cap.goes-down" "a driver answered MiB";
    LocksNothing "locks-nothing" Plain "con.same-mount-8x" "the example for LVM ran mkfs against mkfs";
    LooksBeforeTheLock "looks-before-the-lock" Plain "con.mount-vs-unmount" "a driver looked, and acted later";
    OneDeviceForAll "one-device-for-all" Plain "con.two-volumes-parallel" "a driver found its device by what was new";
    LocksByFile "locks-by-file" Plain "con.stale-lock" "a lock was a file, broken after minutes";
    RunsOutOfSlots "runs-out-of-slots" Plain "con.parallel-64" "a backend had a few sessions for the whole node";
    RecordsTooEarly "records-too-early" Plain "kill.anywhere" "a crash before mkfs left a volume without a file system for ever";
    RecordsTheAttachFirst "records-the-attach-first" Attached "kill.anywhere" "a driver wrote down an attachment before it was made, and believed it afterwards";
    DetachesHalf "detaches-half" Attached "kill.anywhere" "a driver forgot an attachment before it ended it, and left the device";
    PrintsOnItsWay "prints-on-its-way" Plain "kill.parent-gone" "scripts printed between two steps";
    ForgetsTheDevice "forgets-the-device" Plain "leak.none-after-100-cycles" "drivers unmounted, and left the loop device";
    LeavesAFifo "leaves-a-fifo" Plain "leak.none-after-100-cycles" "a driver never removed its fifos";
    NeedsThePod "needs-the-pod" Plain "life.1-6" "drivers asked for the pod's namespace";
    OnlyNewKeys "only-new-keys" Plain "life.1-13" "drivers refused a key that a later release renamed";
    OnlyOldKeys "only-old-keys" Plain "life.1-25" "drivers refused a key that a release before had named otherwise";
    MapInMemory "map-in-memory" Plain "life.restart-anywhere" "a driver's list of volumes was in memory alone";
    AlreadyMounted "already-mounted" Plain "life.duplicated" "drivers failed because the first call had succeeded";
    TrustsTheOrder "trusts-the-order" Plain "life.reordered" "drivers took the order of calls for granted";
}
