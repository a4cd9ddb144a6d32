package contract

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"k8s.io/utils/exec"
)

// calls runs drivers as kubelet does, and records the calls.
type calls struct {
	mutex sync.Mutex
	lines [][]string
}

func (c *calls) Command(name string, arguments ...string) exec.Cmd {
	c.remember(arguments)
	return exec.New().Command(name, arguments...)
}

func (c *calls) CommandContext(context context.Context, name string, arguments ...string) exec.Cmd {
	c.remember(arguments)
	return exec.New().CommandContext(context, name, arguments...)
}

func (c *calls) LookPath(file string) (string, error) { return exec.New().LookPath(file) }

func (c *calls) remember(arguments []string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.lines = append(c.lines, arguments)
}

// of returns the arguments of every call of one callout so far.
func (c *calls) of(callout string) [][]string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var found [][]string
	for _, line := range c.lines {
		if line[0] == callout {
			found = append(found, line[1:])
		}
	}
	return found
}

// names returns the callouts so far, in order.
func (c *calls) names() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	var names []string
	for _, line := range c.lines {
		names = append(names, line[0])
	}
	return strings.Join(names, " ")
}

// options returns the JSON argument of the only call of a callout.
func (c *calls) options(t *testing.T, callout string) map[string]string {
	t.Helper()
	made := c.of(callout)
	if len(made) != 1 {
		t.Fatalf("%d calls of %s, expected one: %s", len(made), callout, c.names())
	}
	for _, argument := range made[0] {
		if strings.HasPrefix(argument, "{") {
			options := map[string]string{}
			must(t, json.Unmarshal([]byte(argument), &options))
			return options
		}
	}
	t.Fatalf("%s has no JSON: %v", callout, made[0])
	return nil
}
