# The first process of a sandbox. It says "here" on its standard input, which is a socket, waits for
# a line, and says "ready". Then it is asked there: a line "SIZE WORD FILES", then that many bytes
# of a tar archive with the code and so many files. It answers with a line "WORD STATUS SIZE", and
# as many bytes of a tar archive with the files that the code made or changed; the word is "ended"
# if the command did, and "full" if the archive could not be unpacked. "-" as the size says that the
# files are too large.
#
# once|session  FOLDER  LIFELINE  MOST-FILES  COMMAND...
#
# Everything is in the folder: code/main is the code, work is where it runs, own is for this script. The command runs the
# code and ends (once), or waits for words on 5 and says them on 6 with a status when the code has run (session). The lifeline
# is a file that ends with the process that asks; none where the kernel sees to that.
kind=$1 folder=$2 lifeline=$3 most=$4
shift 4
# Nothing of this machine that is open may come along.
for open in /proc/$$/fd/*; do
    if [ "${open##*/}" -gt 2 ] && [ -L "$open" ]; then
        echo "supervisor: descriptor ${open##*/} of this process is open" >&2
        exit 1
    fi
done
# It is alone until it is let go: whoever asks may put it into a control group before that, with all
# that it starts then.
echo here >&0
read -r go <&0 || exit 1
# All that is not gone by then ends with the process that asks.
if [ -n "$lifeline" ]; then
    exec 9<"$lifeline"
    { read -r gone; kill -KILL 0; } <&9 9<&- >/dev/null 2>&1 &
    exec 9<&-
fi
# Code may send it; whether it did anything would depend on who started all this.
trap : INT
# The code gets neither the socket nor what this shell says.
exec 3<&0 </dev/null 4>&2 2>/dev/null
cd "$folder/work" || exit 1
own="$folder/own"

# All other processes. Only the first process of a sandbox may do that: for it there are no others than the sandbox's.
signal_others() {
    if [ $$ -eq 1 ]; then kill "-$1" -1; fi
}

if [ "$kind" = session ]; then
    ask="$own/ask" told="$own/told"
    mkfifo "$ask" "$told" || exit 1
    # The command reads the one and writes to the other. Of the second this shell has only the end to read from, so that it
    # hears when nobody is left to write.
    exec 5<>"$ask" 6<>"$told" 7<"$ask" 8>"$told" 9<"$told"
    exec 6<&9 9<&-
    rm -f "$ask" "$told"
    { exec 3>&-; (exec "$@" 2>&4 4>&- 5<&7 6>&8 7<&- 8>&-); echo "ended $?" >&8; } &
    exec 7<&- 8>&-
fi

# Says it as it is: `echo` would make lines of what stands for them.
answer() {
    printf '%s %s %s\n' "$1" "$2" "$3" >&3
}

echo ready >&3
while read -r size word given <&3; do
    # All of it is read, so that the next request is found.
    if ! head -c "$size" <&3 | { tar -x -m -f - -C "${folder:-/}" --no-same-owner; is_there=$?; cat >/dev/null; exit "$is_there"; }; then
        answer full 0 -
        continue
    fi
    # What the code is given is not what it leaves. The clock of files goes in steps, and what it does now must be later.
    if [ "$given" -gt 0 ]; then
        true >"$own/mark"
        sleep 0.01
    fi
    # What goes on behind the code of a session stands still between requests.
    signal_others CONT
    if [ "$kind" = session ]; then
        echo "$word" >&5
        # Whatever else was said there is not the answer: the code can write there, but does not know the next word.
        while read -r said status <&6; do
            if [ "$said" = "$word" ] || [ "$said" = ended ]; then break; fi
        done
        if [ -z "$said" ]; then said=ended status=137; fi
        # What the code says there may be anything.
        case $status in '' | *[!0-9]*) status=255 ;; esac
        signal_others STOP
    else
        (exec "$@" 2>&4 3>&- 4>&-)
        said=ended status=$?
        signal_others KILL
    fi
    # Whatever is changed from here on is for the next time.
    true >"$own/next"
    rm -rf "$own/result"
    if [ -e "$own/mark" ]; then marked=1; else marked=; fi
    find . -maxdepth 1 -type f ${marked:+-cnewer "$own/mark"} -print0 |
        head -z -n "$((most + 1))" |
        tar -c -f "$own/result" --format=gnu --hard-dereference --null --no-recursion --ignore-failed-read -T -
    # 1 is for files that changed meanwhile.
    if [ $? -le 1 ]; then
        # Too many are not taken, and come again when there are fewer.
        if [ "$(tar -t -f "$own/result" | wc -l)" -le "$most" ]; then mv -f "$own/next" "$own/mark"; fi
        answer "$said" "$status" "$(($(wc -c <"$own/result")))"
        cat "$own/result" >&3
    else
        answer "$said" "$status" -
    fi
    rm -rf "$own/result"
done
