package contract

import (
	"bytes"
	"sync"
)

// logBuffer keeps what Kubernetes logs: shown when a test fails, searched for secrets.
type logBuffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *logBuffer) Write(line []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(line)
}

// take returns what was logged since it was last called.
func (b *logBuffer) take() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	defer b.text.Reset()
	return b.text.String()
}
