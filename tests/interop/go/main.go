// A client of LedgerService in Go, from generated code: writes a ledger, reads it back, follows one, and meets errors.
//
//	ledgerclient ADDRESS ENTRIES ENTRY_SIZE BATCH [CA_FILE TOKEN]
//
// With CA_FILE it connects by TLS, trusts the authorities of that file, and shows the bearer token in every call.
//
// Prints the ids of the ledgers that it wrote and tailed as JSON. Ends with 1 and one line if anything is not as it
// should be.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "podkeeper.dev/ledgerclient/ledgerv1"
)

var password = []byte("from Go")

type program struct {
	client                   pb.LedgerServiceClient
	entries, size, batchSize int
}

func main() {
	numbers := make([]int, 3)
	for i := range numbers {
		number, err := strconv.Atoi(os.Args[i+2])
		check(err)
		numbers[i] = number
	}
	connection, err := grpc.NewClient(os.Args[1], security(os.Args[5:])...)
	check(err)
	defer connection.Close()
	p := program{pb.NewLedgerServiceClient(connection), numbers[0], numbers[1], numbers[2]}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	written := p.write(ctx)
	p.read(ctx, written)
	p.metadata(ctx, written)
	tailed := p.tail(ctx)
	cancelled := p.cancel(ctx)
	p.errors(ctx, written)
	check(json.NewEncoder(os.Stdout).Encode(map[string]int64{"written": written, "tailed": tailed, "cancelled": cancelled}))
}

// bearer is the token that every call carries.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

func security(arguments []string) []grpc.DialOption {
	if len(arguments) == 0 {
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	trusting, err := credentials.NewClientTLSFromFile(arguments[0], "")
	check(err)
	return []grpc.DialOption{grpc.WithTransportCredentials(trusting), grpc.WithPerRPCCredentials(bearer(arguments[1]))}
}

// payload i is its number, then i mod 256 to its size.
func (p program) payload(i int) []byte {
	payload := bytes.Repeat([]byte{byte(i)}, p.size)
	binary.BigEndian.PutUint32(payload, uint32(i))
	return payload
}

func (p program) write(ctx context.Context) int64 {
	call, err := p.client.Append(ctx)
	check(err)
	first := &pb.AppendRequest{Ledger: &pb.AppendRequest_Create{Create: &pb.CreateRequest{
		EnsembleSize: 3, WriteQuorum: 3, AckQuorum: 2, Password: password,
		CustomMetadata: map[string][]byte{"language": []byte("Go")},
	}}}
	check(call.Send(first))
	go func() {
		for start := 0; start < p.entries; start += p.batchSize {
			request := &pb.AppendRequest{}
			for i := start; i < min(start+p.batchSize, p.entries); i++ {
				request.Entries = append(request.Entries, p.payload(i))
			}
			if call.Send(request) != nil {
				return // Recv tells why
			}
		}
		call.CloseSend()
	}()
	last := &pb.AppendResponse{LastEntryId: -1}
	for {
		response, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		check(err)
		expect(response.LastEntryId >= last.LastEntryId, "acknowledgements go back from %d to %d", last.LastEntryId, response.LastEntryId)
		last = response
	}
	expect(last.Closed && last.LastEntryId == int64(p.entries-1), "the last response is %v", last)
	return last.LedgerId
}

func (p program) read(ctx context.Context, ledger int64) {
	call, err := p.client.Read(ctx, &pb.ReadRequest{LedgerId: ledger, Password: password, MaxBatchBytes: 100_000})
	check(err)
	next := 0
	for {
		response, err := call.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		check(err)
		expect(response.FirstEntryId == int64(next), "a response begins with %d instead of %d", response.FirstEntryId, next)
		for _, entry := range response.Entries {
			expect(bytes.Equal(entry, p.payload(next)), "entry %d is another", next)
			next++
		}
	}
	expect(next == p.entries, "%d of %d entries were read", next, p.entries)
}

func (p program) metadata(ctx context.Context, ledger int64) {
	metadata, err := p.client.GetMetadata(ctx, &pb.GetMetadataRequest{LedgerId: ledger})
	check(err)
	expect(metadata.State == pb.LedgerMetadata_CLOSED && metadata.Length == int64(p.entries*p.size), "metadata is %v", metadata)
	expect(string(metadata.CustomMetadata["language"]) == "Go", "custom metadata is %v", metadata.CustomMetadata)
}

// tail follows a ledger while it is written, and sees its end.
func (p program) tail(ctx context.Context) int64 {
	created, err := p.client.Create(ctx, &pb.CreateRequest{Password: password})
	check(err)
	ledger := created.Metadata.LedgerId
	tail, err := p.client.Tail(ctx, &pb.TailRequest{LedgerId: ledger, Password: password, FirstEntryId: new(int64)})
	check(err)
	for _, keepOpen := range []bool{true, false} {
		call, err := p.client.Append(ctx)
		check(err)
		existing := &pb.ExistingWriter{LedgerId: ledger, Password: password, KeepOpen: keepOpen}
		check(call.Send(&pb.AppendRequest{Ledger: &pb.AppendRequest_Existing{Existing: existing}, Entries: [][]byte{[]byte("a"), []byte("b")}}))
		check(call.CloseSend())
		for err == nil {
			_, err = call.Recv()
		}
		expect(errors.Is(err, io.EOF), "append ended with %v", err)
	}
	var entries [][]byte
	for {
		response, err := tail.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		check(err)
		entries = append(entries, response.Entries...)
	}
	expect(string(bytes.Join(entries, nil)) == "abab", "the tail has %q", entries)
	return ledger
}

// cancel leaves a ledger that the gateway has to close.
func (p program) cancel(ctx context.Context) int64 {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := p.client.Append(ctx)
	check(err)
	check(call.Send(&pb.AppendRequest{Ledger: &pb.AppendRequest_Create{Create: &pb.CreateRequest{Password: password}}, Entries: [][]byte{[]byte("a")}}))
	for {
		response, err := call.Recv()
		check(err)
		if response.LastEntryId == 0 {
			return response.LedgerId
		}
	}
}

func (p program) errors(ctx context.Context, ledger int64) {
	_, err := p.client.GetMetadata(ctx, &pb.GetMetadataRequest{LedgerId: 1 << 40})
	expectError(err, codes.NotFound, "NoSuchLedger")
	_, err = p.client.Create(ctx, &pb.CreateRequest{EnsembleSize: 100})
	expectError(err, codes.Unavailable, "NotEnoughBookies")
	call, err := p.client.Read(ctx, &pb.ReadRequest{LedgerId: ledger, Password: []byte("wrong")})
	check(err)
	_, err = call.Recv()
	expectError(err, codes.PermissionDenied, "Unauthorized")
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	open, err := p.client.Create(ctx, &pb.CreateRequest{})
	check(err)
	tail, err := p.client.Tail(short, &pb.TailRequest{LedgerId: open.Metadata.LedgerId})
	check(err)
	_, err = tail.Recv()
	expect(status.Code(err) == codes.DeadlineExceeded, "a tail past its deadline ended with %v", err)
	_, err = p.client.Close(ctx, &pb.CloseRequest{LedgerId: open.Metadata.LedgerId})
	check(err)
	_, err = p.client.Delete(ctx, &pb.DeleteRequest{LedgerId: open.Metadata.LedgerId})
	check(err)
}

func expectError(err error, code codes.Code, reason string) {
	expect(status.Code(err) == code, "the error is %v instead of %v", err, code)
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Reason == reason && info.Domain == "podkeeper" {
			return
		}
	}
	expect(false, "the error %v does not say %s", err, reason)
}

func expect(holds bool, format string, values ...any) {
	if !holds {
		check(fmt.Errorf(format, values...))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
