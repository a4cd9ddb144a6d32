package contract

import (
	"bytes"
	"sync"
)

// logBuffer keeps the log of Kubernetes: it is shown when a test fails, and searched for secrets.
type logBuffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *logBuffer) Write(line []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(line)
}

// take returns the log since the last call.
func (b *logBuffer) take() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	defer b.text.Reset()
	return b.text.String()
}
