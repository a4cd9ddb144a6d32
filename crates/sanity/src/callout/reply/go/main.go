// Prints what Go makes of replies. Standard input has the table go.tsv, or new lines for it: a reply
// as strconv.Quote writes it, and whatever after a tab. The types are those of Kubernetes 1.13 to 1.37,
// pkg/volume/flexvolume/driver-call.go, where handleCmdResponse begins with all capabilities.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
)

type capabilities struct {
	Attach   bool `json:"attach"`
	SELinux  bool `json:"selinuxRelabel"`
	Metrics  bool `json:"supportsMetrics"`
	FSGroup  bool `json:"fsGroup"`
	FSResize bool `json:"requiresFSResize"`
}

type status struct {
	Status       string        `json:"status"`
	Message      string        `json:"message"`
	Device       string        `json:"device"`
	Volume       string        `json:"volumeName"`
	Attached     bool          `json:"attached"`
	Capabilities *capabilities // without a name of its own, as there
	Size         int64         `json:"volumeNewSize"`
}

func bits(all *capabilities) string {
	if all == nil {
		return "null"
	}
	text := ""
	for _, has := range []bool{all.Attach, all.SELinux, all.Metrics, all.FSGroup, all.FSResize} {
		if has {
			text += "1"
		} else {
			text += "0"
		}
	}
	return text
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		quoted, _, _ := strings.Cut(lines.Text(), "\t")
		reply, err := strconv.Unquote(quoted)
		if err != nil {
			fmt.Fprintln(os.Stderr, quoted, err)
			os.Exit(1)
		}
		s := status{Capabilities: &capabilities{Attach: true, SELinux: true, FSGroup: true, FSResize: true}}
		if json.Unmarshal([]byte(reply), &s) != nil {
			fmt.Printf("%s\terror\n", quoted)
			continue
		}
		fmt.Printf("%s\t%+q\t%+q\t%+q\t%+q\t%v\t%s\t%d\n",
			quoted, s.Status, s.Message, s.Device, s.Volume, s.Attached, bits(s.Capabilities), s.Size)
	}
}
